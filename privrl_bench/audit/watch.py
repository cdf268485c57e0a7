"""The real gate, devices and algorithm of a run, watched by the leak test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

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


class WatchedGate(Gate):
    """The real gate; its watcher gets its inputs and outputs.

    Args:
        plan: the real one.
        watcher: a `CounterfactualRun`: `on_cohort`, `on_rows` and `on_release` get the output of a stage, and
            return the input of the next one.
        start: the round that the run was moved to; users who take part once are drawn as from round 0.
    """

    def __init__(self, plan: Gate, watcher: Any, start: int):
        self.__dict__.update(vars(plan))
        self._watcher, self._start = watcher, start
        if start:
            # A moved run may be planned for 10^15 rounds, too many for the accountant, and has no lines of the
            # rounds before. Its epsilon is that of no run, so any number does.
            numbers = ("planned_epsilon", "spent_epsilon", "paper_epsilon")
            vars(self).update(dict.fromkeys(numbers, lambda *_, **__: 1.0))

    def draw(self, round_index: int, population: int | None, used_once: bool) -> Cohort:
        """See `Gate.draw`."""
        index = round_index - self._start if used_once else round_index
        return self._watcher.on_cohort(super().draw(index, population, used_once))

    def guarantee(self, r: int, done: int | None = None, ledger: Any = None) -> Guarantee:
        """See `Account.guarantee`."""
        return super().guarantee(r, None if self._start else done, ledger)

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
    """The users' devices; the watcher's `on_shown` gets what they show."""

    def __init__(self, devices: DeviceNoise, watcher: Any):
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
    """The real algorithm; the watcher's `on_users` gets the users before `user_update` does."""

    def __init__(self, algo: Any, watcher: Any):
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
