"""Worlds of one configuration that differ in one user of one round, stepped side by side.

A world runs the real training code and shows what every stage of a round made: users, rows, what passes
beside the gate, state, what is carried over. It compares each stage with its model world, bit for bit, and
then goes on from the model's values (it is healed). So a difference is seen where it arises, once, and not
again in all that follows from it. The released values are always the model's.

With local noise what is released is what her device shows: she has other observations (and rewards, if noised),
and her device shows what the model's did. Then not even her own row may differ.
Where people keep what they did (`people.py`), the user is one who comes in the round, and she is somebody else
in every round that she joins from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.assemble import CARRIED_OVER, RUNNING_OBS, RUNNING_REWARD, assemble
from privrl_bench.audit.people import NULL, OtherPerson, OtherTrajectory
from privrl_bench.errors import ConfigError
from privrl_bench.people import People
from privrl_bench.privacy.local import LocalNoise
from privrl_bench.privacy.plan import PrivacyPlan
from privrl_bench.privacy.rows import Contribution, Released
from privrl_bench.rollout import Rollout
from privrl_bench.schema import RunConfig
from privrl_bench.session import Session
from privrl_bench.source import DatasetSource
from privrl_bench.types import UserBatch

SAME_ROUND = "same round's"  # before `users` and `rows`: of the others in the user's own round

# What a rollout carries to later rounds: start of the tensor's name -> name of the path.
_CARRIED = {
    "scaler.obs": RUNNING_OBS,
    "scaler.return": RUNNING_REWARD,
    "scaler.running_return": RUNNING_REWARD,
}


@dataclass(frozen=True)
class Forced:
    """What a world is made to believe was released; only the gate makes a `Released`."""

    values: dict[str, Tensor]
    bypass: dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Difference:
    """A tensor that depends on the user although nothing but the release may.

    Attributes:
        path: what it is a part of: a caveat's name, or stage and tensor where no caveat is known.
        tensor: the tensor's name.
        round: where it was seen, from 0.
        size: largest absolute difference, in the tensor's unit; infinity for other shapes.
        person: null | crafted.
    """

    path: str
    tensor: str
    round: int
    size: float
    person: str


@dataclass(frozen=True)
class Place:
    """The user and the round in which worlds differ, both from 0."""

    round: int
    user: int


def distance(a: Tensor | None, b: Tensor | None) -> float | None:
    """Largest absolute difference; None if equal, where NaN equals NaN, and other shapes never do."""
    if a is None or b is None or a.shape != b.shape:
        return float("inf")
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return None
    return float((a - b).abs()[~same].nan_to_num(nan=float("inf")).max())


class _WatchedPlan(PrivacyPlan):
    """The real plan; its world sees what enters and leaves, and puts the model's values in place."""

    def __init__(self, plan: PrivacyPlan, world: World):
        self.__dict__.update(vars(plan))
        self._world = world

    def cohort(self, round_index: int) -> list[int]:
        """See `PrivacyPlan.cohort`."""
        return self._world.on_cohort(super().cohort(round_index))

    def release(self, contribution: Contribution, round_index: int) -> Released:
        """See `PrivacyPlan.release`."""
        diagnostics = contribution.diagnostics
        rows, valid, bypass = contribution.take()
        rows, valid = self._world.on_rows(rows, valid)
        again = Contribution(rows, valid, bypass, diagnostics)
        return self._world.on_release(super().release(again, round_index))


class _ForcedDevices:
    """The users' devices; its world sees what they show, and puts what the model's showed in place."""

    def __init__(self, devices: LocalNoise, world: World):
        self._devices = devices
        self._world = world

    def at_reset(self, raw: np.ndarray, t: int) -> np.ndarray:
        """See `LocalNoise.at_reset`."""
        return self._world.on_shown(self._devices.at_reset(raw, t))

    def after_step(self, raw: np.ndarray, t: int) -> np.ndarray:
        """See `LocalNoise.after_step`."""
        return self._world.on_shown(self._devices.after_step(raw, t))

    def reward(self, rewards: np.ndarray, t: int) -> np.ndarray:
        """See `LocalNoise.reward`."""
        told = self._devices.reward(rewards, t)
        return told if self._devices.ranges.reward is None else self._world.on_shown(told)


class _WatchedAlgorithm:
    """The real algorithm; its world sees the users that `local` gets."""

    def __init__(self, algo: Any, world: World):
        self._algo = algo
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algo, name)

    def local(self, state: Any, users: UserBatch, streams: Any) -> Contribution:
        """See `Algorithm.local`."""
        return cast(Contribution, self._algo.local(state, self._world.on_users(users), streams))


class World:
    """One run, and how it differs from its model, which has to be stepped first.

    Args:
        config: of one run.
        place: whom the worlds differ in.
        person: who sits there, null | crafted; None: the same as ever, a model.
        model: the world to compare with.
        heal: go on from the model's values after every comparison, so that only causes are seen.
    """

    def __init__(
        self,
        config: RunConfig,
        place: Place,
        person: str | None = None,
        model: World | None = None,
        heal: bool = True,
    ):
        parts = assemble([config], [None])
        algo = cast(Any, _WatchedAlgorithm(parts.algo, self))
        self.parts = replace(parts, plan=_WatchedPlan(parts.plan, self), algo=algo)
        self.session = Session(self.parts)
        self.differences: list[Difference] = []
        self.compared = 0
        self.own_row: dict[str, Tensor] = {}  # what the gate gets of the user in her round
        self.own_valid = False
        self._place = place
        self._person = person or ""
        self._model = model
        self._heal = heal
        self._seeded = config.privacy.noise == "seeded"
        self._index = 0
        # What this round's stages made; worlds that have this one as their model go on from it.
        self._cohort: list[int] = []
        self._users: UserBatch
        self._rows: dict[str, Tensor]
        self._released: Released
        self._seen: dict[str, dict[str, Tensor]] = {}
        self._stranger: OtherPerson | OtherTrajectory | None = None
        self._shown: list[
            np.ndarray
        ] = []  # by devices in this round, before anything is put in place
        rollout = self.session.rollout
        self._local = parts.plan.local is not None
        if parts.plan.local is not None and isinstance(rollout, Rollout):
            rollout.device = cast(Any, _ForcedDevices(parts.plan.local, self))
        exact = ("ends",) if config.privacy.rewards == "noised" else ("ends", "rewards")
        if person is not None and isinstance(rollout, DatasetSource):
            self._stranger = rollout.instead = OtherTrajectory(place.user, person)
        elif not isinstance(rollout, DatasetSource):
            played = rollout.rollout if isinstance(rollout, People) else rollout
            # A model's, too, never present there: all worlds are then stepped alike, none in compiled code,
            # whose rounding is its own.
            self._stranger = played.slots = OtherPerson(
                played.slots,
                place.user,
                person or "",
                parts.steps,
                parts.spec.limit,
                resets=config.env.user != "segment",
                shares=exact if self._local else (),
            )

    # -- comparing --------------------------------------------------------------------------

    def _meet(self, stage: str, tensors: dict[str, Tensor], path: str | None = None) -> None:
        """Show what a stage made; compare it with the model's."""
        self._seen[stage] = {name: x.detach().clone() for name, x in tensors.items()}
        if self._model is None:
            return
        there = self._model._seen.get(stage, {})
        for name in {**there, **tensors}:
            self.compared += 1
            size = distance(there.get(name), tensors.get(name))
            if size is not None:
                known = next((p for s, p in _CARRIED.items() if name.startswith(s)), CARRIED_OVER)
                found = known if stage == "rollout" else path or f"{stage} {name}"
                label = f"{stage} {name}"
                self.differences.append(Difference(found, label, self._index, size, self._person))

    @staticmethod
    def _without(x: Tensor, u: int) -> Tensor:
        """[R, U, ...] without a place."""
        return torch.cat([x[:, :u], x[:, u + 1 :]], dim=1)

    def _others(self, x: Tensor) -> Tensor:
        """[R, U, ...] without the user, who is in this round."""
        return self._without(x, self._slot or 0)

    @property
    def _number(self) -> int | None:
        """The user's among people who keep what they did."""
        if not isinstance(self.session.rollout, People):
            return None
        coming = self.parts.config.algo.arrivals(self._place.round)
        if self._place.user >= len(coming):
            raise ConfigError(
                "--user",
                f"{len(coming)} people come in round {self._place.round}, counted from 0; "
                f"got {self._place.user} (--round chooses another round)",
            )
        return coming[self._place.user]

    @property
    def _slot(self) -> int | None:
        """Where the user stands in this round, if she is in it and the worlds differ in her."""
        number = self._number
        if number is None:
            return self._place.user if self._index == self._place.round else None
        assert isinstance(self.session.rollout, People)
        (places,) = np.nonzero(self.session.rollout.members[0] == number)
        return int(places[0]) if self._index >= self._place.round and len(places) else None

    @property
    def _hers(self) -> bool:
        """Whether the worlds differ in this round."""
        return self._slot is not None

    @property
    def _apart(self) -> bool:
        """Whether what she sends may differ in this round: not if it is private when it leaves her."""
        return self._hers and not self._local

    # -- the stages of a round --------------------------------------------------------------

    def on_cohort(self, drawn: list[int]) -> list[int]:
        """The number of users; secret draws of the operating system are the model's."""
        if self._model is not None and not self._seeded:
            drawn = self._model._cohort
        self._cohort = drawn
        alone = self._number is None and self._index == self._place.round
        if alone and self._place.user >= drawn[0]:
            raise ConfigError(
                "--user",
                f"round {self._index} has {drawn[0]} users, counted from 0; "
                f"got {self._place.user} (--round chooses another round)",
            )
        self._meet("cohort", {"users": torch.tensor(drawn)})
        return drawn

    def on_shown(self, told: np.ndarray) -> np.ndarray:
        """[R, U, ...] what devices show; hers shows what the model's did (all, if the noise is secret)."""
        at = len(self._shown)
        self._shown.append(told)
        if self._model is None or at >= len(self._model._shown):
            return told
        there = self._model._shown[at]
        if not self._seeded:
            return there.copy()
        if self._hers:
            told = told.copy()
            told[0, self._place.user] = there[0, self._place.user]
        return told

    def on_users(self, users: UserBatch) -> UserBatch:
        """The data of a round; a null user's are blank."""
        names = [f.name for f in fields(users) if f.name != "stats"]
        names = [name for name in names if getattr(users, name) is not None]
        u = self._slot or 0
        if self._apart and self._person == NULL:
            blank = {name: getattr(users, name).clone() for name in names}
            for x in blank.values():
                x[0, u] = 0
            users = replace(users, **blank)
        tensors = {name: getattr(users, name) for name in names}
        if self._apart:
            others = {name: self._others(x) for name, x in tensors.items()}
            self._meet(f"{SAME_ROUND} users", others)
        else:
            self._meet("users", tensors)
        self._users = users
        if self._model is None or not self._heal:
            return users
        healed = {name: getattr(self._model._users, name).clone() for name in names}
        if self._apart:
            for name, x in healed.items():
                x[0, u] = tensors[name][0, u]
        return replace(users, **healed)

    def on_rows(self, rows: dict[str, Tensor], valid: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What the users send to the gate: (rows, valid)."""
        pooled = valid.shape[1] != self.parts.plan.slots  # one row that is everybody's
        u = 0 if pooled else self._slot or 0
        tensors = {**rows, "valid": valid}
        self._rows = tensors
        if self._hers:
            if not self.own_valid:  # the first of her rounds
                self.own_row = {name: x[0, u].clone() for name, x in rows.items()}
                self.own_valid = bool(valid[0, u])
            if self._local:
                hers = [np.ravel(x[0, self._place.user]) for x in self._shown]
                self.own_row = {"what her device shows": torch.from_numpy(np.concatenate(hers))}
        if self._apart:
            if pooled:
                return rows, valid
            others = {name: self._others(x) for name, x in tensors.items()}
            self._meet(f"{SAME_ROUND} rows", others)
        else:
            self._meet("rows", tensors)
        if self._model is None or not self._heal:
            return rows, valid
        healed = {name: x.clone() for name, x in self._model._rows.items()}
        if self._apart:
            for name, x in healed.items():
                x[0, u] = tensors[name][0, u]
        valid = healed.pop("valid")
        return healed, valid

    def on_release(self, released: Released) -> Released:
        """What leaves the gate; the values are the model's, and the bypass if healed."""
        beside = {} if self._model is None else self._model._released.bypass
        for name in {**beside, **released.bypass}:
            self._meet(name, released.bypass.get(name, {}), path=name)
        if self._local or (self._seeded and not self._apart):
            self._meet("release", released.values)  # same rows and noise: the gate forgets users
        self._released = released
        if self._model is None:
            return released
        there = self._model._released
        kept = there.bypass if self._heal else released.bypass
        bypass = {name: {k: x.clone() for k, x in one.items()} for name, one in kept.items()}
        values = {name: x.clone() for name, x in there.values.items()}
        return cast(Released, Forced(values, bypass))

    def step(self) -> None:
        """One round, and what it leaves for later ones."""
        self._index = self.session.round
        self._shown = []
        if self._stranger is not None:
            here = self._index == self._place.round
            self._stranger.present = here and bool(self._person)
        self.session.step()
        if self._stranger is not None:
            self._stranger.present = False
        parts, seen = self.parts, len(self.differences)
        lines = [(x["round"], x["attempt"], x["z"]) for x in parts.plan.ledgers[0].lines]
        at = [self.session.round, parts.rounds - 1]
        rate = parts.algo.learning_rate
        self._meet("schedule", {
            "rounds": torch.tensor([parts.rounds, parts.plan.rounds, self.session.round]),
            "learning rate": torch.tensor([rate(index) or 0.0 for index in at], dtype=torch.float64),
            "ledger": torch.tensor(lines, dtype=torch.float64),
        })  # fmt: skip
        learned = parts.algo.scaling(self.session.state)
        scaling = {} if learned is None else vars(learned)
        self._meet("policy", {
            "parameters": parts.algo.actor(self.session.state),
            **{name: x for name, x in scaling.items() if x is not None},
        })  # fmt: skip
        for stage, tensors in self.session.snapshot().items():
            if isinstance(tensors, dict):
                kept = self._public(tensors)
                if self._local:  # raw observations stay on the devices
                    kept = {name: x for name, x in kept.items() if name != "raw"}
                self._meet(stage, kept)
        if self._model is not None and self._heal and len(self.differences) > seen:
            self._take_over(self._model)

    def _public(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Without what the user keeps, and without telling whether hers was the longest."""
        number = self._number
        if number is None:
            return tensors

        def others(x: Tensor) -> Tensor:
            short = (*[0, 0] * (x.dim() - 3), 0, self.parts.steps - x.shape[2])
            return self._without(torch.nn.functional.pad(x, short), number)

        return {k: others(x) if k.startswith("people.") else x for k, x in tensors.items()}

    def _take_over(self, model: World) -> None:
        """Continue from the model's state and slots."""
        self.session.state = model.session.state.clone()
        if not self.session.rollout.set_state(model.session.rollout.get_state()):
            raise ConfigError(
                "env",
                "this environment is not determined by its seed and actions, so two worlds cannot be "
                "compared bit for bit",
            )

    def evaluate(self) -> None:
        """What evaluation says at the end."""
        (found,) = self.session.evaluate()
        returns, lengths = torch.from_numpy(found.returns), torch.from_numpy(found.lengths)
        self._meet("evaluation", {"returns": returns, "lengths": lengths})

    def close(self) -> None:
        """Free the environments."""
        self.session.close()
