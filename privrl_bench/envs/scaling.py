"""Scaling of observations and rewards.

By public constants, by constants learned under privacy (part of every round's state), or by running
statistics of all users' data, which is declared as a caveat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.types import Scaling

RUNNING_OBS = "running observation statistics"
RUNNING_REWARD = "running reward statistics"


class _Moments:
    """Running mean and variance per slot, updated one sample at a time (Welford)."""

    def __init__(self, *shape: int):
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = np.full(shape[:2], 1e-4)

    def update(self, x: np.ndarray, where: np.ndarray) -> None:
        """Add one sample to the slots in `where` [R, U] bool; `x` has the shape of `mean`."""
        grown = self.count + 1.0
        wide = (...,) + (None,) * (x.ndim - 2)
        delta = x - self.mean
        mean = self.mean + delta / grown[wide]
        var = (self.var * self.count[wide] + delta**2 * (self.count / grown)[wide]) / grown[wide]
        chosen = where[wide]
        self.mean = np.where(chosen, mean, self.mean)
        self.var = np.where(chosen, var, self.var)
        self.count = np.where(where, grown, self.count)


@dataclass(frozen=True)
class FrozenScaling:
    """Constant scaling of observations: [R, 1, D] means and standard deviations, or None."""

    mean: np.ndarray | None
    std: np.ndarray | None
    clip: float

    def obs(self, obs: np.ndarray) -> np.ndarray:
        """Return scaled observations [R, n, D]."""
        if self.mean is None or self.std is None:
            return obs
        return np.clip((obs - self.mean) / self.std, -self.clip, self.clip)


class SignalScaler:
    """The scaling that an `EnvConfig` selects.

    With `running`, every slot has statistics of all data of its users, as Gymnasium's normalising wrappers
    (the running return restarts at 0 in every episode, also after a time limit). Data of later users are then
    scaled by data of earlier users without noise.

    Args:
        config: Scaling modes and public constants.
        replicas: R.
        users: U.
        obs_dim: D.
        gamma: Discount of the running return that scales rewards.
    """

    def __init__(self, config: EnvConfig, replicas: int, users: int, obs_dim: int, gamma: float):
        self._config = config
        self._running = "running" in (config.obs_scaling, config.reward_scaling)
        self._gamma = gamma
        self._obs = _Moments(replicas, users, obs_dim)
        self._returns = _Moments(replicas, users)
        self._running_return = np.zeros((replicas, users))
        self._reward_scale: float | np.ndarray = config.reward_scale
        if config.obs_scaling in ("public", "private"):
            self._start_mean = np.zeros(obs_dim) + np.asarray(config.obs_mean or 0.0)
            self._start_std = np.ones(obs_dim) * np.asarray(config.obs_std or 1.0)
            self._obs.mean[:] = self._start_mean
            self._obs.var[:] = np.square(self._start_std)
        self._refresh()

    def use(self, learned: Scaling | None) -> None:
        """Set the scaling learned from releases, relative to the public constants; None: unchanged."""
        if learned is None:
            return
        if learned.obs_mean is not None and learned.obs_std is not None:
            mean = learned.obs_mean.double().numpy()[:, None]
            std = learned.obs_std.double().numpy()[:, None]
            self._obs.mean[:] = self._start_mean + self._start_std * mean
            self._obs.var[:] = np.square(self._start_std * std)
            self._refresh()
        if learned.reward_scale is not None:
            factor = learned.reward_scale.double().numpy()
            self._reward_scale = self._config.reward_scale * factor

    def _refresh(self) -> None:
        self._inverse_std = 1.0 / np.sqrt(self._obs.var + 1e-8)

    def obs(self, obs: np.ndarray, *, update: np.ndarray | None) -> np.ndarray:
        """Return scaled observations [R, U, D]; running statistics learn from `update` [R, U] bool."""
        if self._config.obs_scaling == "none":
            return obs
        if self._config.obs_scaling == "running" and update is not None:
            self._obs.update(obs, update)
            self._refresh()
        cut = self._config.obs_clip
        return np.minimum(np.maximum((obs - self._obs.mean) * self._inverse_std, -cut), cut)

    def restart(self, where: np.ndarray) -> None:
        """Reset the running return of the slots `where` [R, U] bool at the start of an episode."""
        self._running_return[where] = 0.0

    def reward(self, rewards: np.ndarray, update: np.ndarray) -> np.ndarray:
        """Return scaled rewards [R, U]; running statistics learn from `update` [R, U] bool."""
        if self._config.reward_scaling == "none":
            return rewards
        scale = self._reward_scale
        if self._config.reward_scaling == "running":
            grown = self._running_return * self._gamma + rewards
            self._running_return = np.where(update, grown, self._running_return)
            self._returns.update(self._running_return, update)
            scale = 1.0 / np.sqrt(self._returns.var + 1e-8)
        cut = self._config.reward_clip
        return np.minimum(np.maximum(rewards * scale, -cut), cut)

    def constants(self) -> list[tuple[Any, Any, float]]:
        """Return (shift, factor, bound) of observations [R, U, D] and of rewards; not of running statistics."""
        config, unscaled = self._config, (0.0, 1.0, float("inf"))
        obs = (self._obs.mean, self._inverse_std, config.obs_clip)
        rewards = (0.0, self._reward_scale, config.reward_clip)
        return [
            unscaled if config.obs_scaling == "none" else obs,
            unscaled if config.reward_scaling == "none" else rewards,
        ]

    def frozen(self) -> FrozenScaling:
        """Return the current scaling for evaluation: the average of the slots' statistics."""
        if self._config.obs_scaling == "none":
            return FrozenScaling(None, None, self._config.obs_clip)
        mean, var = self._obs.mean, self._obs.var
        if self._running:
            mean, var = mean.mean(axis=1, keepdims=True), var.mean(axis=1, keepdims=True)
        else:  # all slots have the same
            mean, var = mean[:, :1], var[:, :1]
        std = np.sqrt(var + 1e-8)
        return FrozenScaling(mean, std, self._config.obs_clip)

    def _statistics(self) -> dict[str, np.ndarray]:
        """What is learned from slots, by reference; empty: nothing is."""
        if not self._running:
            return {}
        return {
            "obs_mean": self._obs.mean,
            "obs_var": self._obs.var,
            "obs_count": self._obs.count,
            "return_mean": self._returns.mean,
            "return_var": self._returns.var,
            "return_count": self._returns.count,
            "running_return": self._running_return,
        }

    def get_state(self) -> dict[str, Tensor]:
        """Return tensors for the checkpoint; none where nothing is learned from slots."""
        return {name: torch.from_numpy(x.copy()) for name, x in self._statistics().items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore `get_state`."""
        for name, x in self._statistics().items():
            x[...] = state[name].numpy()
        self._refresh()
