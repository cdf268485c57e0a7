"""The real gate, devices and algorithm of a run, watched by the leak test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from torch import Tensor

from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.privacy.devices import DeviceNoise
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import UserBatch
from privrl_bench.users.collectors.collector import Batch


@dataclass(frozen=True)
class Forced:
    """Stands for a `Released` in a counterfactual run; only the gate makes a `Released`."""

    values: dict[str, Tensor]
    bypass: dict[str, dict[str, Tensor]]


class Watcher(Protocol):
    """Gets the output of every stage of a round, and returns the input of the next stage."""

    def on_cohort(self, drawn: Cohort) -> Cohort:
        """The users of a round."""
        ...

    def on_shown(self, batch: np.ndarray) -> np.ndarray:
        """[R, U, ...] what devices show."""
        ...

    def on_users(self, users: Batch) -> Batch:
        """The data of a round."""
        ...

    def on_rows(self, rows: dict[str, Tensor], valid: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What the users send to the gate: (rows, valid)."""
        ...

    def on_release(self, released: Released) -> Released:
        """What leaves the gate."""
        ...


class WatchedGate(Gate):
    """The real gate; its watcher gets its inputs and outputs.

    Args:
        plan: the real one.
        watcher: see `Watcher`.
        start: the round that the run was moved to; users who take part once are drawn as from round 0.
    """

    def __init__(self, plan: Gate, watcher: Watcher, start: int):
        self.__dict__.update(vars(plan))
        self._watcher, self._start = watcher, start

    def draw(self, round_index: int, population: int | None, used_once: bool) -> Cohort:
        """See `Gate.draw`."""
        index = round_index - self._start if used_once else round_index
        return self._watcher.on_cohort(super().draw(index, population, used_once))

    # A moved run may be planned for 10^15 rounds, too many for the accountant, and has no lines of the rounds
    # before. Its epsilon is that of no run, so any number does.

    def guarantee(self, r: int, done: int | None = None) -> Guarantee:
        """See `Account.guarantee`."""
        return super().guarantee(r, None if self._start else done)

    def planned_epsilon(self, r: int) -> float:
        """See `Account.planned_epsilon`."""
        return 1.0 if self._start else super().planned_epsilon(r)

    def spent_epsilon(self, r: int, below_round: int | None = None) -> float:
        """See `Account.spent_epsilon`."""
        return 1.0 if self._start else super().spent_epsilon(r, below_round)

    def paper_epsilon(self, r: int) -> float:
        """See `Account.paper_epsilon`."""
        return 1.0 if self._start else super().paper_epsilon(r)

    def add(self, contribution: Contribution) -> None:
        """See `Gate.add`."""
        diagnostics, smooth = contribution.diagnostics, contribution.smooth
        rows, valid, bypass = contribution.take()
        rows, valid = self._watcher.on_rows(rows, valid)
        super().add(Contribution(rows, valid, bypass, diagnostics, smooth))

    def release(self, round_index: int) -> Released:
        """See `Gate.release`."""
        return self._watcher.on_release(super().release(round_index))


class WatchedDevices:
    """The users' devices; the watcher gets what they show."""

    def __init__(self, devices: DeviceNoise, watcher: Watcher):
        self._devices = devices
        self._watcher = watcher

    def at_reset(self, raw: np.ndarray, t: int) -> np.ndarray:
        """See `DeviceNoise.at_reset`."""
        return self._watcher.on_shown(self._devices.at_reset(raw, t))

    def after_step(self, raw: np.ndarray, t: int) -> np.ndarray:
        """See `DeviceNoise.after_step`."""
        return self._watcher.on_shown(self._devices.after_step(raw, t))

    def reward(self, rewards: np.ndarray, t: int) -> np.ndarray:
        """See `DeviceNoise.reward`."""
        batch = self._devices.reward(rewards, t)
        return batch if self._devices.ranges.reward is None else self._watcher.on_shown(batch)


class Wrapped:
    """An algorithm of which an audit replaces some methods; all other attributes are the real ones."""

    def __init__(self, algo: Any):
        self._algo = algo

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algo, name)


class WatchedAlgorithm(Wrapped):
    """The real algorithm; the watcher gets the users before `user_update` does."""

    def __init__(self, algo: Any, watcher: Watcher):
        super().__init__(algo)
        self._watcher = watcher

    def user_update(
        self, state: Any, users: Batch | Iterator[UserBatch], streams: Any
    ) -> Contribution:
        """See `Algorithm.user_update`. Raises ConfigError: more users than one shard."""
        if isinstance(users, Iterator):
            shard, *others = users
            if others:
                raise ConfigError("privacy.population", "is too large for the leak test; use a few")
            watched: Any = [self._watcher.on_users(shard)]
        else:
            watched = self._watcher.on_users(users)
        return cast(Contribution, self._algo.user_update(state, watched, streams))
