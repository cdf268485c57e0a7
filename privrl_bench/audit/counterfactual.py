"""Runs of one configuration that differ in one user, stepped side by side.

A counterfactual run executes the real training code and records the output of every stage of a
round: users, rows, un-noised outputs of the gate, state, what is carried over, metrics, and files
that may leave the run. It compares each output with that of its model run, bit for bit, and continues from
the model's values (it is resynchronised). So a difference is reported where it arises, once, and
not again in all that follows from it. The released values are always the model's.

A run has two replicas where the algorithm can train several. The user is in the first one; the
second must not differ at all.

With noise on devices a device's output is the release. The substitute has other observations (and
rewards, if noised), and the device shows what the model's did. Then not even the user's own row may
differ. Where users return (`users/collectors/returning_users.py`), the user arrives in the first round
that differs, and is replaced in every later round that the user joins.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit.compare import OTHER_REPLICA, Stages, padded
from privrl_bench.audit.outputs import Place, Recorder, as_bytes, memory, recorded
from privrl_bench.audit.visits import Visit
from privrl_bench.audit.watch import Forced, WatchedAlgorithm, WatchedDevices, WatchedGate
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Released
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.training.crash import Outcome
from privrl_bench.training.plan import NOT_PRIVATE, make_plan
from privrl_bench.types import State
from privrl_bench.users.collectors.collector import Batch
from privrl_bench.users.collectors.returning_users import KEPT
from privrl_bench.users.collectors.substitutes import ABSENT, NULL, SHORT, ZERO, slots_of


def _replicas(config: RunConfig) -> list[RunConfig]:
    """Two runs that are trained together, where the algorithm supports it."""
    if not config.algo.traits.replicas:
        return [config]
    return [config, replace(config, seed=(config.seed + 1) % 2**32)]


class CounterfactualRun:
    """One run, and its differences from a model run, which has to be stepped first.

    Args:
        config: of one run.
        visit: the rounds, and those in which the user is replaced.
        substitute: the user's replacement, see `users/collectors/substitutes.py`; None: the run is a model.
        model: the run to compare with.
        place: of a lone run that keeps its files; None: two runs are trained together, if possible.

    Attributes:
        session: the run's trainer.
        stages: outputs of the stages, and differences.
        own_rows: the user's rows, round by round.
        own_valid: in any of these rounds.
    """

    def __init__(
        self,
        config: RunConfig,
        visit: Visit,
        substitute: str | None = None,
        model: CounterfactualRun | None = None,
        place: Place | None = None,
    ):
        configs = [config] if place is not None or visit.alone else _replicas(config)
        parts = recorded(make_plan(configs, visit.planned))
        algo = cast(Any, WatchedAlgorithm(parts.algo, self))
        self._algo = parts.algo
        self.parts = replace(parts, gate=WatchedGate(parts.gate, self, visit.start), algo=algo)
        self._open = NOT_PRIVATE in parts.gate.caveats
        self._recorder = Recorder(self.parts, place)
        self.session = self._recorder.trainer
        # All users of a round together, so that rows could mix them.
        self.session.work.together = 1 if visit.one_by_one else parts.gate.slots
        if visit.planned is not None:  # after the collector was built for the users of a short run
            iterations = visit.planned + parts.iterations - parts.rounds
            self.parts = replace(self.parts, rounds=visit.planned, iterations=iterations)
            self.session.parts = self._recorder.experiment.parts = self.parts
        self.session.state.round = visit.start
        self.stages: Stages = Stages(None if model is None else model.stages, substitute or "")
        self.own_rows: list[dict[str, Tensor]] = []
        self.own_valid = False
        self._visit = visit
        self._substitute = substitute or ""
        self._model = model
        self._lone = place is not None
        self._seeded = config.privacy.noise == "seeded"
        self._index = 0
        # Outputs of this round's stages; runs that have this one as their model continue from them.
        self._cohort: Cohort
        self._users: list[Batch] = []  # of every microbatch
        self._rows: list[dict[str, Tensor]] = []
        self._released: Released
        self._shown: list[np.ndarray] = []  # by devices in this round, before anything is replaced
        self._local = parts.gate.devices is not None
        self._substitution = self.session.collector.substituted(visit, self._substitute)
        if parts.gate.devices is not None:
            self._substitution.watch_devices(WatchedDevices(parts.gate.devices, self))

    @property
    def in_order(self) -> bool:
        """Whether users come in a public order, each in one round."""
        return self._substitution.in_order

    @property
    def returns(self) -> bool:
        """Whether users come back in later rounds."""
        return self._substitution.number is not None

    @property
    def over(self) -> bool:
        """Whether training has ended."""
        return self._recorder.over

    # -- comparing --------------------------------------------------------------------------

    def _record(
        self,
        stage: str,
        tensors: dict[str, Tensor],
        path: str | None = None,
        own: int | None = None,
        by_replica: bool = True,
        part: int = 0,
    ) -> None:
        """Record the output of a stage in this round; see `Stages.record`."""
        self.stages.record(self._index, stage, tensors, path, own, by_replica, part)

    @property
    def _slot(self) -> int | None:
        """The user's slot in this round; None: the runs do not differ in it."""
        return self._substitution.slot(self._index, self._cohort)

    @property
    def _acts(self) -> bool:
        """Whether the user is replaced in this round, in a run that is no model."""
        return self._visit.first <= self._index <= self._visit.last

    @property
    def _apart(self) -> int | None:
        """`_slot`, if what the user sends may differ: not where it is private when it leaves the device."""
        return None if self._local else self._slot

    @staticmethod
    def _within(slot: int | None, users: Batch) -> int | None:
        """A slot of the round, as the slot of a batch; None: it is in another one."""
        return slot - users.first if slot is not None and slot in slots_of(users) else None

    # -- the stages of a round --------------------------------------------------------------

    def on_cohort(self, drawn: Cohort) -> Cohort:
        """The users of a round; secret draws of the operating system are the model's."""
        if self._model is not None and not self._seeded:
            drawn = self._model._cohort
        elif self._visit.cohort is not None and self._index == self._visit.first:
            drawn = self._forced(drawn, self._visit.cohort)
        self._cohort = drawn
        self._substitution.check(self._index, drawn)
        self._record("cohort", {"users": torch.tensor(drawn.sizes)})
        if self._substitute != ABSENT or self._index != self._visit.first:
            return drawn
        size, *others = drawn.sizes
        members = drawn.members and [drawn.members[0][:-1], *drawn.members[1:]]
        return replace(drawn, sizes=[size - 1, *others], members=members)

    def _forced(self, drawn: Cohort, size: int) -> Cohort:
        """The cohort with so many users in replica 0, the user last."""
        members = drawn.members
        if members is not None:
            own = self._substitution.number
            others = [*members[0], *range(self.parts.config.privacy.population or 0)]
            last = [] if own is None else [own]
            chosen = [k for k in dict.fromkeys(others) if k != own][: size - len(last)]
            members = [np.array([*chosen, *last], members[0].dtype), *members[1:]]
        return replace(drawn, sizes=[size, *drawn.sizes[1:]], members=members)

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

    def on_users(self, users: Batch) -> Batch:
        """The data of a microbatch; a null user's are blank."""
        names = [f.name for f in fields(users) if isinstance(getattr(users, f.name), Tensor)]
        u, part = self._within(self._apart, users), len(self._users)
        if u is not None and self._substitute == NULL:
            blank = {name: getattr(users, name).clone() for name in names}
            for x in blank.values():
                x[0, u] = 0
            users = replace(users, **blank)
        own = self._within(self._slot, users)
        if not self._visit.others and self._acts:
            blank = {name: getattr(users, name).clone() for name in names}
            for x in blank.values():
                x[0, [k for k in range(users.valid.shape[1]) if k != own]] = 0
            users = replace(users, **blank)
        tensors = {name: getattr(users, name) for name in names}
        self._record("users", tensors, own=u, part=part)
        self._users.append(users)
        if self._model is None:
            return users
        resynchronised = {name: getattr(self._model._users[part], name).clone() for name in names}
        if u is not None:
            for name, x in resynchronised.items():
                x[0, u] = tensors[name][0, u]
        return replace(users, **resynchronised)

    def on_rows(self, rows: dict[str, Tensor], valid: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What the users send to the gate: (rows, valid)."""
        part = len(self._rows)
        users = self._users[part]
        mechanism = self.parts.gate.mechanism
        pooled = mechanism.pooled or valid.shape[1] != users.valid.shape[1]  # one row of all users
        u, slot = self._within(self._apart, users), self._within(self._slot, users)
        place = None if u is None else 0 if pooled else u
        if place is not None and not pooled and self._substitute in (ZERO, SHORT):
            for block in self.parts.gate.blocks:
                x = rows[block.name] = rows[block.name].clone()
                row = x[0, place].nan_to_num()
                norm = float(torch.linalg.vector_norm(row))
                wanted = 0.5 * block.clip if norm > 0.5 * block.clip else 2.0 * block.clip
                x[0, place] = row * (wanted / norm if self._substitute == SHORT and norm else 0.0)
        tensors = {**rows, "valid": valid}
        self._rows.append(tensors)
        if slot is not None:
            at = 0 if pooled else slot
            own = {name: x[0, at].clone() for name, x in rows.items()}
            if self._local:
                shown = [np.ravel(x[0, self._visit.user]) for x in self._shown]
                own = {"what the device shows": torch.from_numpy(np.concatenate(shown))}
            self.own_rows.append(own)
            self.own_valid |= bool(valid[0, at])
        self._record("rows", tensors, own=place, part=part)
        if self._model is None:
            return rows, valid
        resynchronised = {name: x.clone() for name, x in self._model._rows[part].items()}
        if place is not None:
            for name, x in resynchronised.items():
                x[0, place] = tensors[name][0, place]
        valid = resynchronised.pop("valid")
        return resynchronised, valid

    def on_release(self, released: Released) -> Released:
        """Output of the gate; the values and the bypass are the model's."""
        beside = {} if self._model is None else self._model._released.bypass
        for name in {**beside, **released.bypass}:
            self._record(name, released.bypass.get(name, {}), path=name)
        if self._local or (self._seeded and self._apart is None):
            self._record("release", released.values)  # same rows and noise: the gate keeps nothing
        self._released = released
        if self._model is None:
            return released
        there = self._model._released
        bypass = {
            name: {k: x.clone() for k, x in one.items()} for name, one in there.bypass.items()
        }
        values = {name: x.clone() for name, x in there.values.items()}
        return cast(Released, Forced(values, bypass))

    def step(self) -> None:
        """Run one round, and record the state that later rounds depend on."""
        self._index = self.session.round
        self._shown, self._users, self._rows = [], [], []
        self._substitution.switch(self._index)
        self._recorder.step()
        self._substitution.switch(None)
        found = len(self.stages.differences)
        self._record_state()
        if self._model is not None and len(self.stages.differences) > found:
            self._take_over(self._model)
        if self._index >= self._visit.first or self._lone:
            self._record_what_leaves()

    def _record_state(self) -> None:
        """Record the schedule, the policy and everything that a checkpoint would hold."""
        parts = self.parts
        lines = [
            (x["round"], x["attempt"], x["z"]) for one in parts.gate.ledgers for x in one.lines
        ]
        at, state = [self.session.round, parts.rounds - 1], self.session.state
        rates = [parts.algo.metrics(State(i + 1, state.tensors))[0].get("lr", 0.0) for i in at]
        progress = parts.algo.progress(state)
        self._record("schedule", {
            "rounds": torch.tensor([parts.rounds, parts.gate.rounds, self.session.round]),
            "learning rate": torch.tensor(rates, dtype=torch.float64),
            "ledger": torch.tensor(lines, dtype=torch.float64),
            "end": as_bytes([self.session.over, progress.finished]),
            "further releases": as_bytes([progress.needs_release, progress.releases]),
        }, by_replica=False)  # fmt: skip
        if not self._open:  # what an algorithm keeps in its object may end or change a later round
            self._record("memory", memory(self._algo), by_replica=False)
        learned = parts.algo.scaling(self.session.state)
        scaling = {} if learned is None else vars(learned)
        self._record("policy", {
            "parameters": parts.algo.actor(self.session.state),
            **{name: x for name, x in scaling.items() if x is not None},
        })  # fmt: skip
        for stage, tensors in self.session.snapshot().items():
            if isinstance(tensors, dict):
                room = parts.steps, parts.spec.max_episode_steps
                held = {name: padded(name, x, *room) for name, x in tensors.items()}
                if self._local:  # raw observations stay on the devices
                    held = {name: x for name, x in held.items() if name != "raw"}
                kept = {name: x for name, x in held.items() if name.startswith(KEPT)}
                if kept:  # the user's own trajectory may differ
                    self._record("returning users", kept, own=self._substitution.number)
                self._record(stage, {name: x for name, x in held.items() if name not in kept})

    def _record_what_leaves(self) -> None:
        """Record everything that a run writes, prints and sends: it may end after any round."""
        first = self._index == self._visit.first and not self._lone
        for one in self._recorder.after_round(self._visit.evaluated, first):
            whose = f"{OTHER_REPLICA} " if one.replica else ""
            self._record(f"{whose}{one.stage}", one.content, by_replica=False, part=one.part)

    def _take_over(self, model: CounterfactualRun) -> None:
        """Continue from the model's state and collector."""
        self.session.state = model.session.state.clone()
        if not self.session.collector.set_state(model.session.collector.get_state()):
            raise ConfigError(
                "env",
                "this environment is not determined by its seed and actions, so two runs cannot be compared "
                "bit for bit",
            )

    def evaluate(self, picture: bool) -> None:
        """Record a last evaluation, all of it, and the picture of the run."""
        found = self.session.evaluate()
        content = {
            name: torch.stack([torch.from_numpy(vars(one)[name]) for one in found])
            for name, value in vars(found[0]).items()
            if isinstance(value, np.ndarray)
        }
        self._record("evaluation", content)
        for r, one in enumerate(found):
            shown = {"metrics": as_bytes(one.metrics()), "samples": as_bytes(list(one.samples))}
            whose = f"{OTHER_REPLICA} " if r else ""
            self._record(f"{whose}evaluation", shown, by_replica=False, part=1)
        if picture:
            self._record("file", self._recorder.picture(), by_replica=False, part=2)

    def finish(self) -> Outcome:
        """Write the files of a run whose training is over."""
        return self._recorder.finish()

    def close(self) -> None:
        """Free the environments."""
        self._recorder.close()
