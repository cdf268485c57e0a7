"""Scaling of observations and rewards.

Public constants; constants learned under privacy, which arrive with every round's state; or running
statistics of everything users saw, under a named caveat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.types import Scaling

RUNNING_OBS = "running observation statistics"
RUNNING_REWARD = "running reward statistics"


class _Moments:
    """Mean and variance of a stream, one set per slot, updated one sample at a time (Welford)."""

    def __init__(self, *shape: int):
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = np.full(shape[:2], 1e-4)

    def update(self, x: np.ndarray, where: np.ndarray) -> None:
        """Add one sample to the slots in `where` [R, U]; `x` has the shape of `mean`."""
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
    """A scaling of observations that does not learn: [R, 1, D] means and deviations, or None."""

    mean: np.ndarray | None
    std: np.ndarray | None
    clip: float

    def obs(self, obs: np.ndarray) -> np.ndarray:
        """Scaled [R, n, D] observations."""
        if self.mean is None or self.std is None:
            return obs
        return np.clip((obs - self.mean) / self.std, -self.clip, self.clip)


class SignalScaler:
    """The scaling that `EnvConfig` asks for.

    With `running`, every slot keeps its own statistics of everything its users ever saw, as Gymnasium's
    normalising wrappers do (the running return starts at 0 in every episode, also after a time limit);
    later users are scaled by earlier users' data, which no noise covers.

    Args:
        config: scaling modes and public constants.
        replicas, users: R, U.
        obs_dim: D.
        gamma: discount of the running return that scales rewards.
    """

    def __init__(self, config: EnvConfig, replicas: int, users: int, obs_dim: int, gamma: float):
        self._config = config
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
        """Take the scaling that training learned from releases, on top of the public constants."""
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
        """Scaled [R, U, D] observations; `update` [R, U] bool: slots to learn from, None: none."""
        if self._config.obs_scaling == "none":
            return obs
        if self._config.obs_scaling == "running" and update is not None:
            self._obs.update(obs, update)
            self._refresh()
        cut = self._config.obs_clip
        return np.minimum(np.maximum((obs - self._obs.mean) * self._inverse_std, -cut), cut)

    def restart(self, where: np.ndarray) -> None:
        """The slots `where` [R, U] bool begin a new episode: their running return starts at 0."""
        self._running_return[where] = 0.0

    def reward(self, rewards: np.ndarray, update: np.ndarray) -> np.ndarray:
        """Scaled [R, U] rewards; `update` [R, U] bool: slots to learn from."""
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

    def frozen(self) -> FrozenScaling:
        """The scaling of evaluation observations as it is now: the slots' average statistics."""
        if self._config.obs_scaling == "none":
            return FrozenScaling(None, None, self._config.obs_clip)
        mean = self._obs.mean.mean(axis=1, keepdims=True)
        std = np.sqrt(self._obs.var.mean(axis=1, keepdims=True) + 1e-8)
        return FrozenScaling(mean, std, self._config.obs_clip)

    def get_state(self) -> dict[str, Tensor]:
        """Tensors for the checkpoint."""
        arrays = {
            "obs_mean": self._obs.mean,
            "obs_var": self._obs.var,
            "obs_count": self._obs.count,
            "return_mean": self._returns.mean,
            "return_var": self._returns.var,
            "return_count": self._returns.count,
            "running_return": self._running_return,
        }
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `get_state`."""
        arrays = {name: x.numpy().copy() for name, x in state.items()}
        self._obs.mean, self._obs.var = arrays["obs_mean"], arrays["obs_var"]
        self._obs.count = arrays["obs_count"]
        self._returns.mean, self._returns.var = arrays["return_mean"], arrays["return_var"]
        self._returns.count = arrays["return_count"]
        self._running_return = arrays["running_return"]
        self._refresh()
