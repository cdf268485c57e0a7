"""Gymnasium's Acrobot and Pendulum for many slots at once, in NumPy.

The equations are Gymnasium's own (`AcrobotEnv._dsdt` is called as it is); what is written here is the
integrator and the bookkeeping around them, over arrays. Equal to stepping single environments, tested.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.utils import seeding

from privrl_bench.envs.slots import StepResult


class ClassicSlots(ABC):
    """`Slots` over a state array [count, S]; subclasses give the physics.

    Args:
        count: number of slots.
        limit: time limit in steps.
    """

    size: int  # S

    def __init__(self, count: int, limit: int):
        self.count = count
        self._limit = limit
        self._state = np.zeros((count, self.size))
        self._elapsed = np.zeros(count, dtype=np.int64)

    @abstractmethod
    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """First state [S] of an episode, drawn as the single environment draws it."""

    @abstractmethod
    def observe(self, state: np.ndarray) -> np.ndarray:
        """[n, S] -> [n, D] float32."""

    @abstractmethod
    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[n, S] states and actions -> next states, rewards [n], terminated [n]."""

    def reset(self, indices: np.ndarray, seeds: list[int]) -> np.ndarray:
        """See `Slots.reset`."""
        started = [self.begin(seeding.np_random(seed)[0]) for seed in seeds]
        state = np.asarray(started).reshape(len(seeds), self.size)
        self._state[indices] = state
        self._elapsed[indices] = 0
        return self.observe(state)

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`."""
        state, rewards, terminated = self.advance(self._state[indices], actions)
        self._state[indices] = state
        self._elapsed[indices] += 1
        cut = self._elapsed[indices] >= self._limit
        return StepResult(self.observe(state), rewards, terminated, cut)

    def close(self) -> None:
        """See `Slots.close`."""
        self._state = np.zeros((0, self.size))


class AcrobotSlots(ClassicSlots):
    """Acrobot-v1: angles and rates of two links [rad, rad/s], torque -1, 0 or 1 N m."""

    size = 4

    def __init__(self, count: int, limit: int):
        super().__init__(count, limit)
        self._physics = AcrobotEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return rng.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        cos, sin = np.cos(state[:, :2]), np.sin(state[:, :2])
        parts = (cos[:, 0], sin[:, 0], cos[:, 1], sin[:, 1], state[:, 2], state[:, 3])
        return np.stack(parts, axis=-1).astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`: one step of the classical Runge-Kutta method."""
        torque = np.asarray(self._physics.AVAIL_TORQUE)[actions]
        start = np.vstack([state.T, torque[None]])
        dt = self._physics.dt

        def slope(x: np.ndarray) -> np.ndarray:
            *rates, _ = self._physics._dsdt(x)
            return np.stack([*rates, np.zeros_like(torque)])

        k1 = slope(start)
        k2 = slope(start + dt / 2.0 * k1)
        k3 = slope(start + dt / 2.0 * k2)
        k4 = slope(start + dt * k3)
        after = (start + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4))[:4].T
        for column in (0, 1):
            after[:, column] = _wrap(after[:, column])
        for column, most in ((2, self._physics.MAX_VEL_1), (3, self._physics.MAX_VEL_2)):
            after[:, column] = np.clip(after[:, column], -most, most)
        up = -np.cos(after[:, 0]) - np.cos(after[:, 1] + after[:, 0]) > 1.0
        return after, np.where(up, 0.0, -1.0), up


class PendulumSlots(ClassicSlots):
    """Pendulum-v1: angle and rate [rad, rad/s], torque within 2 N m."""

    size = 2

    def __init__(self, count: int, limit: int):
        super().__init__(count, limit)
        self._physics = PendulumEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        high = np.array([np.pi, 1.0])
        return rng.uniform(low=-high, high=high)

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        angle = state[:, 0]
        return np.stack([np.cos(angle), np.sin(angle), state[:, 1]], axis=-1).astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`."""
        env = self._physics
        angle, rate = state.T
        torque = np.clip(actions, -env.max_torque, env.max_torque)[:, 0]
        away = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = away**2 + 0.1 * rate**2 + 0.001 * torque**2
        push = 3 * env.g / (2 * env.l) * np.sin(angle) + 3.0 / (env.m * env.l**2) * torque
        rate = np.clip(rate + push * env.dt, -env.max_speed, env.max_speed)
        return (
            np.stack([angle + rate * env.dt, rate], axis=-1),
            -cost,
            np.zeros(len(state), dtype=bool),
        )


def _wrap(angle: np.ndarray) -> np.ndarray:
    """Whole turns off until the angle is within [-pi, pi], one at a time as Gymnasium does."""
    angle = angle.copy()
    while (high := angle > np.pi).any():
        angle[high] -= 2 * np.pi
    while (low := angle < -np.pi).any():
        angle[low] += 2 * np.pi
    return angle
