"""The real plan, devices and algorithm of a run, with a world of the leak test between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from torch import Tensor

from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.privacy.devices import LocalNoise
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import TextBatch, UserBatch


@dataclass(frozen=True)
class Forced:
    """What a world is made to believe was released; only the gate makes a `Released`."""

    values: dict[str, Tensor]
    bypass: dict[str, dict[str, Tensor]]


class Watcher(Protocol):
    """Sees what every stage of a round made, and gives what the next stage gets."""

    def on_cohort(self, drawn: list[int]) -> list[int]:
        """The number of users of each replica."""
        ...

    def on_members(self, drawn: list[np.ndarray]) -> list[np.ndarray]:
        """Who joins."""
        ...

    def on_shown(self, batch: np.ndarray) -> np.ndarray:
        """[R, U, ...] what devices show."""
        ...

    def on_users(self, users: UserBatch | TextBatch) -> UserBatch | TextBatch:
        """The data of a round."""
        ...

    def on_rows(self, rows: dict[str, Tensor], valid: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What the users send to the gate: (rows, valid)."""
        ...

    def on_release(self, released: Released) -> Released:
        """What leaves the gate."""
        ...


class WatchedGate(Gate):
    """The real plan; its watcher sees what enters and leaves.

    Args:
        plan: the real one.
        watcher: see `Watcher`.
        start: the round that the run was moved to; users who are used once come as from round 0.
    """

    def __init__(self, plan: Gate, watcher: Watcher, start: int):
        self.__dict__.update(vars(plan))
        self._watcher, self._start = watcher, start

    def draw(self, round_index: int, users: int | None, once: bool) -> Cohort:
        """See `Gate.draw`."""
        if users is None:
            return Cohort(self._watcher.on_cohort(super().draw(round_index, None, once).sizes))
        once_each = once and not self.sampler.every_round
        drawn = super().draw(round_index - self._start if once else round_index, users, once)
        members = drawn.numbers() if once_each else self._watcher.on_members(drawn.numbers())
        return Cohort([len(who) for who in members], members)

    def release(self, contribution: Contribution, round_index: int) -> Released:
        """See `Gate.release`."""
        diagnostics, smooth = contribution.diagnostics, contribution.smooth
        rows, valid, bypass = contribution.take()
        rows, valid = self._watcher.on_rows(rows, valid)
        again = Contribution(rows, valid, bypass, diagnostics, smooth)
        return self._watcher.on_release(super().release(again, round_index))


class WatchedDevices:
    """The users' devices; the watcher sees what they show."""

    def __init__(self, devices: LocalNoise, watcher: Watcher):
        self._devices = devices
        self._watcher = watcher

    def at_reset(self, raw: np.ndarray, t: int) -> np.ndarray:
        """See `LocalNoise.at_reset`."""
        return self._watcher.on_shown(self._devices.at_reset(raw, t))

    def after_step(self, raw: np.ndarray, t: int) -> np.ndarray:
        """See `LocalNoise.after_step`."""
        return self._watcher.on_shown(self._devices.after_step(raw, t))

    def reward(self, rewards: np.ndarray, t: int) -> np.ndarray:
        """See `LocalNoise.reward`."""
        batch = self._devices.reward(rewards, t)
        return batch if self._devices.ranges.reward is None else self._watcher.on_shown(batch)


class WatchedAlgorithm:
    """The real algorithm; the watcher sees the users that `local` gets."""

    def __init__(self, algo: Any, watcher: Watcher):
        self._algo = algo
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algo, name)

    def local(self, state: Any, users: UserBatch | TextBatch, streams: Any) -> Contribution:
        """See `Algorithm.local`."""
        return cast(Contribution, self._algo.local(state, self._watcher.on_users(users), streams))

    def local_of_all(self, state: Any, pieces: Iterable[UserBatch], streams: Any) -> Contribution:
        """See `Algorithm.local_of_all`. Raises ConfigError: more people than one piece."""
        users, *others = pieces
        if others:
            raise ConfigError("privacy.population", "is too large for the leak test; use a few")
        return self.local(state, users, streams)
