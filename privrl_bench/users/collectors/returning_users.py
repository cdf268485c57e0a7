"""Users who act once and may join any later round with the trajectory of that time.

The gate draws who joins. The kept trajectories are private: a checkpoint holds them, a released
state or policy never does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.errors import ConfigError
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import EnvSpec, UserBatch
from privrl_bench.users.collectors.collector import BatchShape, Collector
from privrl_bench.users.collectors.live import SimulatedCollector, SimulatedSubstitution
from privrl_bench.users.collectors.shards import blank_of, train_stats
from privrl_bench.users.collectors.substitutes import Substitution, replace_batches

KEPT = "kept."  # prefix of the tensors of a state that users keep, [R, population, T, ...]


class ReturningCollector(Collector):
    """Users who keep their trajectories.

    User k is the k-th to arrive, a public number, and user k of an environment that declares users.
    One with non-finite data keeps nothing, as if absent.

    Args:
        live: where those who arrive act, one slot each.
        spec: the environment's public facts.
        population: users who arrive in the whole run.
        users: slots of a round's cohort.
        arrivals: round -> numbers of the users who arrive in it.
    """

    def __init__(
        self,
        live: SimulatedCollector,
        spec: EnvSpec,
        population: int,
        users: int,
        arrivals: Callable[[int], range],
    ):
        replicas, steps = live.shape.replicas, live.shape.steps
        self.shape = BatchShape(replicas, users, steps)
        self.population, self.live, self.arrivals = population, live, arrivals
        self.scaler = live.scaler
        self._spec = spec
        self._kept = blank_of(spec, (replicas, population, steps))
        self._arrived = 0
        self._longest = 0  # steps of the longest trajectory so far

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """Users who arrive act with `policy_params` [R, P]; then the members who have arrived.

        Raises: EnvironmentFailure.
        """
        assert cohort.members is not None
        coming, replicas = self.arrivals(round_index), self.shape.replicas
        stats = [train_stats([], 0) for _ in range(replicas)]
        if coming and (cohort.slots is None or cohort.slots.start == 0):  # with the first shard
            declared = self._spec.users is not None
            members = [np.array(coming)] * replicas if declared else None
            arriving = Cohort([len(coming)] * replicas, members)
            batch = self.live.collect(policy_params, round_index, arriving)
            stats = batch.stats
            self._keep(batch, slice(coming.start, coming.stop))
            self._arrived = coming.stop
        return self._of(cohort.members, stats)

    def _keep(self, batch: UserBatch, where: slice) -> None:
        for name, kept in self._kept.items():
            steps = getattr(batch, name)
            there = batch.valid.reshape(*batch.valid.shape, *[1] * (steps.dim() - 2))
            kept[:, where] = torch.where(there, steps, torch.zeros((), dtype=steps.dtype))
        lengths = self._kept["mask"][:, where].sum(-1)
        self._longest = max(self._longest, int(lengths.max()))

    def _of(self, members: list[np.ndarray], stats: list[dict[str, float]]) -> UserBatch:
        """[R, U, T, ...] of the members who have arrived, with their numbers; zeros elsewhere."""
        shape = self.shape
        found = blank_of(self._spec, (shape.replicas, shape.users, shape.steps))
        numbers = torch.full((shape.replicas, shape.users), -1)
        for r, who in enumerate(members):
            slots = np.flatnonzero(who < self._arrived)
            arrived, last = torch.from_numpy(who[slots]), self._longest
            numbers[r, slots] = arrived
            for name, kept in self._kept.items():
                found[name][r, slots, :last] = kept[r, arrived, :last]
        valid = found["mask"].any(-1)
        return UserBatch(**cast(Any, found), valid=valid, stats=stats, numbers=numbers)

    def get_state(self) -> dict[str, Tensor]:
        """What users keep (views), and the state of `live`."""
        kept = {
            f"{KEPT}{name}": x[:, : self._arrived, : self._longest]
            for name, x in self._kept.items()
        }
        return self.live.get_state() | kept

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """See `Collector.set_state`."""
        for name, kept in self._kept.items():
            saved = state[f"{KEPT}{name}"]
            self._arrived, self._longest = saved.shape[1], saved.shape[2]
            kept.zero_()
            kept[:, : self._arrived, : self._longest] = saved
        return self.live.set_state({k: x for k, x in state.items() if not k.startswith(KEPT)})

    def substituted(self, visit: Any, kind: str) -> Substitution:
        """See `Collector.substituted`: where users act, and ever after."""
        return ReturningSubstitution(self, visit, kind)

    def close(self) -> None:
        """Free the environments."""
        self.live.close()


class ReturningSubstitution(SimulatedSubstitution):
    """Replaces a user who arrives in the first round that differs, and joins later rounds as the substitute."""

    in_order = True

    def _install(self, collector: Any, kind: str) -> list[Any]:
        visit = self._visit
        coming = collector.arrivals(visit.first - visit.start)
        if visit.user >= len(coming):
            raise ConfigError(
                "--user",
                f"{len(coming)} users arrive in round {visit.first}, counted from 0; "
                f"got {visit.user} (--round chooses another round)",
            )
        self._number: int = coming[visit.user]
        if visit.start:
            replace_batches(collector, None, visit.start)
        return self._install_live(collector.live, kind)

    def _acts(self, index: int) -> bool:
        return index == self._visit.first  # users who arrive in later rounds are other users

    @property
    def number(self) -> int | None:
        """The user's number."""
        return self._number

    def slot(self, index: int, cohort: Cohort) -> int | None:
        """The user's slot, if the user has joined this round."""
        assert cohort.members is not None
        (places,) = np.nonzero(cohort.members[0] == self._number)
        return int(places[0]) if index >= self._visit.first and len(places) else None

    def check(self, index: int, cohort: Cohort) -> None:
        """Every cohort is valid."""
