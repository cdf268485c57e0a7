"""Worlds of one configuration that differ in one user, stepped side by side.

A world runs the real training code and shows what every stage of a round made: users, rows, what passes
beside the gate, state, what is carried over, metrics and files that may leave. It compares each stage with its
model world, bit for bit, and then goes on from the model's values (it is healed). So a difference is seen where
it arises, once, and not again in all that follows from it. The released values are always the model's.

A world has two replicas where the algorithm can train several. The user is in the first one, and the second
must not differ at all.

With local noise what is released is what the user's device shows: the user has other observations (and rewards,
if noised), and the device shows what the model's did. Then not even the user's own row may differ.
Where users keep what they did (`collectors/returning_users.py`), the user is one who comes in the first round that differs, and is
another user in every round that they join from then on.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit.compare import (
    OTHER_REPLICA,
    Stages,
    evaluation_content,
    exported,
    metrics_that_leave,
    padded,
    policy_tensors,
)
from privrl_bench.audit.replacement_data import NULL
from privrl_bench.audit.substitutes import plays_compiled, substitutes
from privrl_bench.audit.visits import Visit
from privrl_bench.audit.watch import Forced, WatchedAlgorithm, WatchedDevices, WatchedGate
from privrl_bench.collectors.returning_users import ReturningUsers
from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.builder import build, supports_replicas
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.privacy.contribution import Released
from privrl_bench.types import TextBatch, UserBatch


def _replicas(config: RunConfig) -> list[RunConfig]:
    """Two runs that are trained together, where the algorithm can."""
    if not supports_replicas(config):
        return [config]
    return [config, replace(config, seed=(config.seed + 1) % 2**32)]


class CounterfactualRun:
    """One run, and how it differs from its model, which has to be stepped first.

    Args:
        config: of one run.
        visit: which rounds, and in which of them the user is another.
        person: who is there instead, null | crafted; None: the same user as ever, a model.
        model: the world to compare with.
        heal: go on from the model's values after every comparison, so that only causes are seen.
    """

    def __init__(
        self,
        config: RunConfig,
        visit: Visit,
        person: str | None = None,
        model: CounterfactualRun | None = None,
        heal: bool = True,
    ):
        configs = _replicas(config)
        parts = build(configs, [None] * len(configs), visit.planned)
        algo = cast(Any, WatchedAlgorithm(parts.algo, self))
        self.parts = replace(parts, gate=WatchedGate(parts.gate, self, visit.start), algo=algo)
        self.session = Trainer(self.parts)
        # Whether a run of this configuration plays episodes in compiled code.
        self.compiles = plays_compiled(self.session.rollout)
        if (
            visit.planned is not None
        ):  # after the rollout is made: it has room for the users of a short run
            iterations = visit.planned + parts.iterations - parts.rounds
            self.parts = replace(self.parts, rounds=visit.planned, iterations=iterations)
            self.session.parts = self.parts
        self.session.state.round = visit.start
        self.stages: Stages = Stages(None if model is None else model.stages, person or "")
        self.own_rows: list[
            dict[str, Tensor]
        ] = []  # what the gate gets of the user, round by round
        self.own_valid = False  # in any of these rounds
        self._visit = visit
        self._person = person or ""
        self._model = model
        self._heal = heal
        self._seeded = config.privacy.noise == "seeded"
        self._index = 0
        # What this round's stages made; worlds that have this one as their model go on from it.
        self._cohort: list[int] = []
        self._members: list[np.ndarray] = []
        self._users: UserBatch | TextBatch
        self._rows: dict[str, Tensor]
        self._released: Released
        self._shown: list[np.ndarray] = []  # by devices in this round, before anything is replaced
        self._local = parts.gate.local is not None
        if parts.gate.local is not None and isinstance(self.session.rollout, SimulatedCollector):
            self.session.rollout.device = cast(Any, WatchedDevices(parts.gate.local, self))
        self._substitutes = substitutes(self.session, visit, person or "")

    # -- comparing --------------------------------------------------------------------------

    def _meet(
        self,
        stage: str,
        tensors: dict[str, Tensor],
        path: str | None = None,
        own: int | None = None,
        by_replica: bool = True,
    ) -> None:
        """Show what a stage made, in this round; see `Stages.meet`."""
        self.stages.meet(self._index, stage, tensors, path, own, by_replica)

    @property
    def _number(self) -> int | None:
        """The user's among people who keep what they did."""
        if not isinstance(self.session.rollout, ReturningUsers):
            return None
        first = self._visit.first - self._visit.start if self._visit.moved else self._visit.first
        coming = self.parts.config.algo.arrivals(first)
        if self._visit.user >= len(coming):
            raise ConfigError(
                "--user",
                f"{len(coming)} people come in round {self._visit.first}, counted from 0; "
                f"got {self._visit.user} (--round chooses another round)",
            )
        return coming[self._visit.user]

    @property
    def _here(self) -> bool:
        """Whether this is a round in which the user is another."""
        return self._visit.first <= self._index <= self._visit.last

    @property
    def _slot(self) -> int | None:
        """Where the user stands in this round, if they are in it and the worlds differ in them."""
        number = self._number
        if number is None:
            return self._visit.user if self._here else None
        assert isinstance(self.session.rollout, ReturningUsers)
        (places,) = np.nonzero(self.session.rollout.members[0] == number)
        return int(places[0]) if self._index >= self._visit.first and len(places) else None

    @property
    def _apart(self) -> int | None:
        """`_slot`, if what the user sends may differ: not where it is private when it leaves them."""
        return None if self._local else self._slot

    # -- the stages of a round --------------------------------------------------------------

    def on_cohort(self, drawn: list[int]) -> list[int]:
        """The number of users; secret draws of the operating system are the model's."""
        if self._model is not None and not self._seeded:
            drawn = self._model._cohort
        self._cohort = drawn
        chosen = self._number is None and self._here and not self._visit.moved
        if chosen and self._visit.user >= drawn[0]:
            raise ConfigError(
                "--user",
                f"round {self._index} has {drawn[0]} users, counted from 0; "
                f"got {self._visit.user} (--round chooses another round)",
            )
        self._meet("cohort", {"users": torch.tensor(drawn)})
        return drawn

    def on_members(self, drawn: list[np.ndarray]) -> list[np.ndarray]:
        """Who joins; secret draws of the operating system are the model's."""
        if self._model is not None and not self._seeded:
            drawn = self._model._members
        self._members = drawn
        return drawn

    def on_shown(self, batch: np.ndarray) -> np.ndarray:
        """[R, U, ...] what devices show; the user's shows what the model's did (all do, if noise is secret)."""
        at = len(self._shown)
        self._shown.append(batch)
        if self._model is None or at >= len(self._model._shown):
            return batch
        there = self._model._shown[at]
        if not self._seeded:
            return there.copy()
        if self._slot is not None:
            batch = batch.copy()
            batch[0, self._visit.user] = there[0, self._visit.user]
        return batch

    def on_users(self, users: UserBatch | TextBatch) -> UserBatch | TextBatch:
        """The data of a round; a null user's are blank."""
        names = [f.name for f in fields(users) if isinstance(getattr(users, f.name), Tensor)]
        u = self._apart
        if u is not None and self._person == NULL:
            blank = {name: getattr(users, name).clone() for name in names}
            for x in blank.values():
                x[0, u] = 0
            users = replace(users, **blank)
        tensors = {name: getattr(users, name) for name in names}
        self._meet("users", tensors, own=u)
        self._users = users
        if self._model is None or not self._heal:
            return users
        resynchronised = {name: getattr(self._model._users, name).clone() for name in names}
        if u is not None:
            for name, x in resynchronised.items():
                x[0, u] = tensors[name][0, u]
        return replace(users, **resynchronised)

    def on_rows(self, rows: dict[str, Tensor], valid: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What the users send to the gate: (rows, valid)."""
        pooled = valid.shape[1] != self.parts.gate.slots  # one row that is everybody's
        u = self._apart
        place = None if u is None else 0 if pooled else u
        tensors = {**rows, "valid": valid}
        self._rows = tensors
        if self._slot is not None:
            at = 0 if pooled else self._slot
            own = {name: x[0, at].clone() for name, x in rows.items()}
            if self._local:
                shown = [np.ravel(x[0, self._visit.user]) for x in self._shown]
                own = {"what the device shows": torch.from_numpy(np.concatenate(shown))}
            self.own_rows.append(own)
            self.own_valid |= bool(valid[0, at])
        self._meet("rows", tensors, own=place)
        if self._model is None or not self._heal:
            return rows, valid
        resynchronised = {name: x.clone() for name, x in self._model._rows.items()}
        if place is not None:
            for name, x in resynchronised.items():
                x[0, place] = tensors[name][0, place]
        valid = resynchronised.pop("valid")
        return resynchronised, valid

    def on_release(self, released: Released) -> Released:
        """What leaves the gate; the values are the model's, and the bypass if healed."""
        beside = {} if self._model is None else self._model._released.bypass
        for name in {**beside, **released.bypass}:
            self._meet(name, released.bypass.get(name, {}), path=name)
        if self._local or (self._seeded and self._apart is None):
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
        once = isinstance(self.session.rollout, ReturningUsers)  # who comes later is another user
        here = self._index == self._visit.first if once else self._here
        for substitute in self._substitutes:
            substitute.present = here and bool(self._person)
        self.session.step()
        for substitute in self._substitutes:
            substitute.present = False
        seen = len(self.stages.differences)
        self._meet_state()
        if self._model is not None and self._heal and len(self.stages.differences) > seen:
            self._take_over(self._model)
        if self._heal and self._index >= self._visit.first:
            self._meet_what_leaves()

    def _meet_state(self) -> None:
        """Schedule, policy and everything that a checkpoint would hold."""
        parts = self.parts
        lines = [
            (x["round"], x["attempt"], x["z"]) for one in parts.gate.ledgers for x in one.lines
        ]
        at = [self.session.round, parts.rounds - 1]
        rate = parts.algo.learning_rate
        self._meet("schedule", {
            "rounds": torch.tensor([parts.rounds, parts.gate.rounds, self.session.round]),
            "learning rate": torch.tensor([rate(index) or 0.0 for index in at], dtype=torch.float64),
            "ledger": torch.tensor(lines, dtype=torch.float64),
        }, by_replica=False)  # fmt: skip
        learned = parts.algo.scaling(self.session.state)
        scaling = {} if learned is None else vars(learned)
        self._meet("policy", {
            "parameters": parts.algo.actor(self.session.state),
            **{name: x for name, x in scaling.items() if x is not None},
        })  # fmt: skip
        for stage, tensors in self.session.snapshot().items():
            if isinstance(tensors, dict):
                room = parts.steps, parts.spec.max_episode_steps
                kept = {name: padded(name, x, *room) for name, x in tensors.items()}
                if self._local:  # raw observations stay on the devices
                    kept = {name: x for name, x in kept.items() if name != "raw"}
                people = {name: x for name, x in kept.items() if name.startswith("people.")}
                if people:  # the user keeps what they did
                    self._meet("people", people, own=self._number)
                self._meet(stage, {name: x for name, x in kept.items() if name not in people})

    def _meet_what_leaves(self) -> None:
        """Metrics that are not private, `policy.pt` and exported files: a run may end after any round."""
        self._meet("metrics", metrics_that_leave(self.session.diagnostics))
        for r in range(len(self.parts.configs)):
            whose = f"{OTHER_REPLICA} " if r else ""
            self._meet(f"{whose}policy.pt", policy_tensors(self.session, r), by_replica=False)
            self._meet(f"{whose}export", exported(self.session, r), by_replica=False)

    def _take_over(self, model: CounterfactualRun) -> None:
        """Continue from the model's state and slots."""
        self.session.state = model.session.state.clone()
        if not self.session.rollout.set_state(model.session.rollout.get_state()):
            raise ConfigError(
                "env",
                "this environment is not determined by its seed and actions, so two worlds cannot be "
                "compared bit for bit",
            )

    def evaluate(self) -> None:
        """What evaluation finds at the end, which the learning curve shows."""
        self._meet("evaluation", evaluation_content(self.session))

    def close(self) -> None:
        """Free the environments."""
        self.session.close()
