"""Users who keep what they did: they play once, and may join any round from then on.

Stands where `collectors/simulated.py` stands for users who are met once, and `collectors/dataset.py` for a dataset. Who joins is drawn
by the gate (`plan.members`). What is kept is private: a checkpoint has it, a released state or policy never.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.types import EnvSpec, UserBatch

_TOLD = ("obs", "next_obs", "actions", "rewards", "terminated", "done", "mask")
_NOBODY_PLAYED = {"train/return_mean": math.nan, "train/episodes": 0.0, "train/invalid_users": 0.0}


class ReturningUsers:
    """Rounds of people with memories, by the interface of `rollout.SimulatedCollector`.

    Person p is the p-th to come, a public number, and user p of an environment that declares users; one whose
    data are not finite keeps nothing, as if absent.

    Args:
        rollout: where those who come play, one slot each.
        spec: the environment's public facts.
        people: how many come in the whole run.
        room: slots of a round's cohort.
        arrivals: round -> numbers of those who come in it.
    """

    def __init__(
        self,
        rollout: SimulatedCollector,
        spec: EnvSpec,
        people: int,
        room: int,
        arrivals: Callable[[int], range],
    ):
        replicas, _, steps = rollout.shape
        self.people, self.rollout = people, rollout
        self._real = spec.users is not None
        self.shape = (replicas, room, steps)
        self._arrivals = arrivals
        first = (replicas, people, steps)
        actions = (*first,) if spec.discrete else (*first, spec.actions)
        self._kept = {
            "obs": torch.zeros(*first, spec.obs_dim),
            "next_obs": torch.zeros(*first, spec.obs_dim),
            "actions": torch.zeros(actions, dtype=torch.long if spec.discrete else torch.float32),
            "rewards": torch.zeros(first),
            **{name: torch.zeros(first, dtype=torch.bool) for name in _TOLD[4:]},
        }
        self._came = 0
        self._longest = 0  # steps of anybody so far
        self.members: list[np.ndarray] = []  # who joined the last round

    @property
    def scaler(self):  # type: ignore[no-untyped-def]
        """Of those who play."""
        return self.rollout.scaler

    def collect(self, actor: Tensor, round_index: int, members: list[np.ndarray]) -> UserBatch:
        """One round: who comes plays with `actor` [R, P] and keeps it; then those of `members` who are here.

        A number in `members` that has not come is an absent person's. Raises EnvironmentFailure.
        """
        coming = self._arrivals(round_index)
        stats = [dict(_NOBODY_PLAYED) for _ in members]
        if coming:
            if self._real:
                met = self.rollout.meet(actor, round_index, [np.array(coming)] * len(members))
            else:
                met = self.rollout.collect(actor, round_index, [len(coming)] * len(members))
            stats = met.stats
            self._keep(met, slice(coming.start, coming.stop))
            self._came = coming.stop
        self.members = members
        return replace(self._those(members), stats=stats)

    def _keep(self, met: UserBatch, where: slice) -> None:
        for name, kept in self._kept.items():
            batch = getattr(met, name)
            there = met.valid.reshape(*met.valid.shape, *[1] * (batch.dim() - 2))
            kept[:, where] = torch.where(there, batch, torch.zeros((), dtype=batch.dtype))
        lengths = self._kept["mask"][:, where].sum(-1)
        self._longest = max(self._longest, int(lengths.max()))

    def _those(self, members: list[np.ndarray]) -> UserBatch:
        """[R, room, T, ...] of who is here; the others' slots hold nothing of anybody."""
        replicas, room, _ = self.shape
        found = {
            name: torch.zeros(replicas, room, *kept.shape[2:], dtype=kept.dtype)
            for name, kept in self._kept.items()
        }
        for r, who in enumerate(members):
            slots = np.flatnonzero(who < self._came)
            numbers, last = torch.from_numpy(who[slots]), self._longest
            for name, kept in self._kept.items():
                found[name][r, slots, :last] = kept[r, numbers, :last]
        return UserBatch(valid=found["mask"].any(-1), stats=[], **found)

    def get_state(self) -> dict[str, Tensor]:
        """What people keep (views), and the rollout's."""
        kept = {
            f"people.{name}": x[:, : self._came, : self._longest] for name, x in self._kept.items()
        }
        return self.rollout.get_state() | kept

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Go on with these people. Returns: see `SimulatedCollector.set_state`."""
        for name, kept in self._kept.items():
            batch = state[f"people.{name}"]
            self._came, self._longest = batch.shape[1], batch.shape[2]
            kept.zero_()
            kept[:, : self._came, : self._longest] = batch
        others = {k: x for k, x in state.items() if not k.startswith("people.")}
        return self.rollout.set_state(others)

    def close(self) -> None:
        """Free the environments."""
        self.rollout.close()


assert {f.name for f in fields(UserBatch)} == {
    *_TOLD,
    "valid",
    "stats",
    "behavior_probs",
    "numbers",
}
