"""Where the leak test replaces the user by a substitute, by the run's collector.

By default the user's data are replaced in the batches that a collector's `shards` yields, which
needs nothing of the collector. A collector whose users act allows an earlier replacement, so that
the substitute's influence on all later steps is tested, too: `SimulatedCollector` in its `slots`,
`PromptCollector` in its `answers`. A new collector with such a place gets a subclass of
`Substitution` and an entry in `SUBSTITUTIONS`, under its name in `experiment/selection.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from privrl_bench.audit.replacement_data import (
    CRAFTED,
    SubstituteAnswer,
    SubstitutePrompt,
    SubstituteStart,
    SubstituteTrajectory,
    SubstituteUser,
)
from privrl_bench.audit.visits import Visit
from privrl_bench.audit.watch import WatchedCollector
from privrl_bench.config.traits import Data
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.privacy.sampling.sampler import Cohort


class Substitution:
    """Replaces the user's trajectory in the batches that the collector yields.

    Args:
        trainer: not stepped yet; its collector is changed.
        visit: the replaced user, and whether the round number is moved.
        kind: see `replacement_data`; empty: the user is not replaced.

    Attributes:
        in_order: users come in a public order, each in one round. A moved run begins with the first
            ones.
        compiles: without a substitution, whole episodes are played in compiled code.
    """

    in_order: ClassVar[bool] = False
    compiles = False

    def __init__(self, trainer: Trainer, visit: Visit, kind: str):
        self._visit, self._active = visit, bool(kind)
        self._switches = self._install(trainer, visit, kind)

    def _install(self, trainer: Trainer, visit: Visit, kind: str) -> list[Any]:
        """Change the collector; returns what replaces the user while its `present` is set."""
        other = SubstituteTrajectory(visit.user, kind)
        trainer.collector = WatchedCollector(trainer.collector, other, 0)
        return [other]

    def watch_devices(self, devices: Any) -> None:
        """Put `devices` in the place of the users' devices, where the collector has them."""

    def switch(self, index: int | None) -> None:
        """Make the substitute present if it acts in round `index`; None: absent."""
        for one in self._switches:
            one.present = self._active and index is not None and self._acts(index)

    def _acts(self, index: int) -> bool:
        """Whether the substitute acts in this round."""
        return self._visit.first <= index <= self._visit.last

    @property
    def number(self) -> int | None:
        """The user's number where users return; None: slots are compared."""
        return None

    def slot(self, index: int, cohort: Cohort) -> int | None:
        """The user's slot in this round; None: the user is not in it, or is not replaced in it."""
        return self._visit.user if self._acts(index) else None

    def check(self, index: int, cohort: Cohort) -> None:
        """Raise ConfigError: round `index` has no user in the slot."""
        size, user = cohort.sizes[0], self._visit.user
        if self._acts(index) and not self._visit.moved and user >= size:
            raise ConfigError(
                "--user",
                f"round {index} has {size} users, counted from 0; got {user} (--round chooses another round)",
            )


class SimulatedSubstitution(Substitution):
    """Replaces the user in the environments' slots, so that the policy acts on other observations."""

    def _install(self, trainer: Trainer, visit: Visit, kind: str) -> list[Any]:
        return self._install_live(trainer, trainer.collector, visit, kind)

    def _install_live(self, trainer: Trainer, live: Any, visit: Visit, kind: str) -> list[Any]:
        parts = trainer.parts
        self._live = live
        self.compiles = live.compiled() is not None
        if visit.compiled:
            return [self._follow(live, SubstituteStart(live.slots, visit.user, kind))]
        exact = ("ends",) if parts.config.privacy.rewards == "noised" else ("ends", "rewards")
        # Also in the model, where it never replaces a user: then all runs are stepped in the same way,
        # and none in compiled code, which rounds differently.
        live.slots = SubstituteUser(
            live.slots,
            visit.user,
            kind,
            parts.steps,
            parts.spec.max_episode_steps,
            resets=parts.config.env.user != "segment",
            shares=() if parts.gate.devices is None else exact,
        )
        return [self._follow(live, live.slots)]

    def _follow(self, live: Any, one: Any) -> Any:
        """`one`, which is in the user's slot of the shard that is collected."""
        real, user, size = live.collect, self._visit.user, live.shape.users

        def collect(policy_params: Any, round_index: int, cohort: Cohort) -> Any:
            at = user - (0 if cohort.slots is None else cohort.slots.start)
            one.move(at if 0 <= at < size else -1)
            return real(policy_params, round_index, cohort)

        live.collect = collect
        return one

    def watch_devices(self, devices: Any) -> None:
        """Put `devices` in the place of the users' devices."""
        self._live.device = devices


class ReturningSubstitution(SimulatedSubstitution):
    """Replaces a user who arrives in the first round that differs, and joins later rounds as the substitute."""

    in_order = True

    def _install(self, trainer: Trainer, visit: Visit, kind: str) -> list[Any]:
        collector: Any = trainer.collector
        coming = collector.arrivals(visit.first - visit.start)
        if visit.user >= len(coming):
            raise ConfigError(
                "--user",
                f"{len(coming)} users arrive in round {visit.first}, counted from 0; "
                f"got {visit.user} (--round chooses another round)",
            )
        self._number: int = coming[visit.user]
        if visit.start:
            trainer.collector = WatchedCollector(collector, None, visit.start)
        return self._install_live(trainer, collector.live, visit, kind)

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


class PromptSubstitution(Substitution):
    """Replaces the user's answer and score and, for a crafted user, the prompt before it is answered."""

    in_order = True

    def _install(self, trainer: Trainer, visit: Visit, kind: str) -> list[Any]:
        collector: Any = trainer.collector
        answer = SubstituteAnswer(visit.user, kind)
        trainer.collector = WatchedCollector(collector, answer, visit.start)
        if kind != CRAFTED:
            return [answer]
        collector.answers = prompt = SubstitutePrompt(collector.answers, visit.user)
        return [answer, prompt]


SUBSTITUTIONS: dict[Data, type[Substitution]] = {
    Data.LIVE: SimulatedSubstitution,
    Data.KEPT: ReturningSubstitution,
    Data.TEXTS: PromptSubstitution,
}


def substitution_for(trainer: Trainer, visit: Visit, kind: str) -> Substitution:
    """The substitution for the trainer's collector; arguments as `Substitution`."""
    found = SUBSTITUTIONS.get(trainer.parts.config.source, Substitution)
    return found(trainer, visit, kind)
