"""Gymnasium's own vector environments behind the `Slots` interface.

CartPole is the only shipped task for which Gymnasium has a NumPy vector environment. Its automatic
reset is kept from firing; resets here reproduce `reset(seed)` of the single environment exactly.
"""

from __future__ import annotations

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding

from privrl_bench.envs.slots import StepResult


class NativeCartPole:
    """CartPole-v1 in all slots at once; equal to stepping single environments (tested).

    Args:
        count: number of slots.
        limit: time limit in steps.
    """

    def __init__(self, count: int, limit: int):
        self.count = count
        self._limit = limit
        self._env = CartPoleVectorEnv(num_envs=count, max_episode_steps=np.iinfo(np.int32).max)
        self._env.reset(seed=0)
        self._elapsed = np.zeros(count, dtype=np.int64)

    @property
    def _state(self) -> np.ndarray:
        """[4, count]; the environment makes a new array in every step."""
        state = self._env.state
        assert state is not None
        return state

    def reset(self, indices: np.ndarray, seeds: list[int]) -> np.ndarray:
        """See `Slots.reset`."""
        for slot, seed in zip(indices, seeds, strict=True):
            rng, _ = seeding.np_random(seed)
            self._state[:, slot] = rng.uniform(low=-0.05, high=0.05, size=(4,))
        self._elapsed[indices] = 0
        return self._state[:, indices].T.astype(np.float32)

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`; slots outside `indices` keep their state."""
        every = np.zeros(self.count, dtype=np.int64)
        every[indices] = actions
        idle = np.ones(self.count, dtype=bool)
        idle[indices] = False
        held = self._state[:, idle].copy()
        obs, rewards, terminated, _, _ = self._env.step(every)
        self._env.prev_done[:] = False
        if idle.any():
            self._state[:, idle] = held
        self._elapsed[indices] += 1
        return StepResult(
            obs[indices],
            rewards[indices],
            terminated[indices],
            self._elapsed[indices] >= self._limit,
        )

    def close(self) -> None:
        """See `Slots.close`."""
        self._env.close()
