"""Gymnasium's CartPole, Acrobot, MountainCar and Pendulum, vectorised over slots in NumPy.

The constants and Acrobot's equations are Gymnasium's own; the rest of a step is implemented here over
arrays. Equal bit for bit to stepping single environments (tested).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.slots import StepResult, UserNumbers


class ClassicSlots(ABC):
    """`Slots` over a state array [S, count]; subclasses define the dynamics.

    Args:
        config: The environment.
        count: Number of slots.
    """

    size: int  # S
    max_episode_steps: int  # Gymnasium's time limit in steps
    physics: Any = None  # Gymnasium's environment, for its constants

    def __init__(self, config: EnvConfig, count: int):
        self.count = count
        self._max_episode_steps = config.max_episode_steps or self.max_episode_steps
        self._state = np.zeros((self.size, count))
        self._elapsed = np.zeros(count, dtype=np.int64)
        self._everyone = np.arange(count)

    def generator(self, seed: int) -> Any:
        """The generator that `reset(seed=...)` of a Gymnasium environment creates."""
        return np.random.Generator(np.random.PCG64(seed))

    @abstractmethod
    def begin(self, rng: Any) -> np.ndarray:
        """Draw an initial state [S] as the single environment does."""

    @abstractmethod
    def observe(self, state: np.ndarray) -> np.ndarray:
        """Return observations [n, D] float32 of states [S, n]."""

    @abstractmethod
    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step states [S, n]: return next states (new arrays), rewards [n], terminated [n]."""

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """See `Slots.reset`."""
        state = np.empty((self.size, len(seeds)))
        for i, seed in enumerate(seeds):
            state[:, i] = self.begin(self.generator(seed))
        self._state[:, indices] = state
        self._elapsed[indices] = 0
        return self.observe(state)

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`."""
        if len(indices) == self.count and np.array_equal(indices, self._everyone):
            self._state, rewards, terminated = self.advance(self._state, actions)
            self._elapsed += 1
            return StepResult(
                self.observe(self._state),
                rewards,
                terminated,
                self._elapsed >= self._max_episode_steps,
            )
        state, rewards, terminated = self.advance(self._state[:, indices], actions)
        self._state[:, indices] = state
        self._elapsed[indices] += 1
        cut = self._elapsed[indices] >= self._max_episode_steps
        return StepResult(self.observe(state), rewards, terminated, cut)

    def close(self) -> None:
        """See `Slots.close`."""
        self._state = np.zeros((self.size, 0))


class CartPoleSlots(ClassicSlots):
    """CartPole-v1: cart position and velocity, pole angle and rate [m, m/s, rad, rad/s]."""

    size, max_episode_steps = 4, 500
    physics = CartPoleEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return rng.uniform(low=-0.05, high=0.05, size=(4,))

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        return state.T.astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`; one Euler step."""
        env = self.physics
        angle, rate = state[2], state[3]
        force = np.where(actions == 1, env.force_mag, -env.force_mag)
        cos, sin = np.cos(angle), np.sin(angle)
        inertia = env.length * (4.0 / 3.0 - env.masspole * np.square(cos) / env.total_mass)
        push = (force + env.polemass_length * np.square(rate) * sin) / env.total_mass
        turn = (env.gravity * sin - cos * push) / inertia
        slope = np.empty_like(state)
        slope[0], slope[2] = state[1], rate
        slope[1] = push - env.polemass_length * turn * cos / env.total_mass
        slope[3] = turn
        after = state + env.tau * slope
        out = np.abs(after[0]) > env.x_threshold
        out |= np.abs(after[2]) > env.theta_threshold_radians
        return after, np.ones(len(out)), out


class AcrobotSlots(ClassicSlots):
    """Acrobot-v1: angles and rates of two links [rad, rad/s]; torque -1, 0 or 1 N m."""

    size, max_episode_steps = 4, 500
    physics = AcrobotEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return rng.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        cos, sin = np.cos(state[:2]), np.sin(state[:2])
        parts = (cos[0], sin[0], cos[1], sin[1], state[2], state[3])
        return np.stack(parts, axis=-1).astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`; one classical Runge-Kutta step."""
        torque = np.asarray(self.physics.AVAIL_TORQUE)[actions]
        start = np.vstack([state, torque[None]])
        dt = self.physics.dt

        def slope(x: np.ndarray) -> np.ndarray:
            *rates, _ = self.physics._dsdt(x)
            return np.stack([*rates, np.zeros_like(torque)])

        k1 = slope(start)
        k2 = slope(start + dt / 2.0 * k1)
        k3 = slope(start + dt / 2.0 * k2)
        k4 = slope(start + dt * k3)
        after = (start + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4))[:4]
        for row in (0, 1):
            after[row] = _wrap(after[row])
        for row, most in ((2, self.physics.MAX_VEL_1), (3, self.physics.MAX_VEL_2)):
            after[row] = np.clip(after[row], -most, most)
        up = -np.cos(after[0]) - np.cos(after[1] + after[0]) > 1.0
        return after, np.where(up, 0.0, -1.0), up


class MountainCarSlots(ClassicSlots):
    """MountainCar-v0: position and velocity; accelerate left, not, right."""

    size, max_episode_steps = 2, 200
    physics = MountainCarEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return np.array([rng.uniform(low=-0.6, high=-0.4), 0.0])

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        return state.T.astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`."""
        env = self.physics
        place, speed = state
        # NumPy's cosine may differ in the last bit from Python's, which Gymnasium uses.
        hill = np.fromiter(map(math.cos, (3 * place).tolist()), np.float64, len(place))
        pushes = np.asarray(actions, dtype=np.int64) - 1
        speed = speed + (pushes * env.force + hill * (-env.gravity))
        speed = np.clip(speed, -env.max_speed, env.max_speed)
        place = np.clip(place + speed, env.min_position, env.max_position)
        speed[(place == env.min_position) & (speed < 0)] = 0.0
        there = (place >= env.goal_position) & (speed >= env.goal_velocity)
        return np.stack([place, speed]), np.full(len(place), -1.0), there


class PendulumSlots(ClassicSlots):
    """Pendulum-v1: angle and rate [rad, rad/s]; torque in [-2, 2] N m."""

    size, max_episode_steps = 2, 200
    physics = PendulumEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        high = np.array([np.pi, 1.0])
        return rng.uniform(low=-high, high=high)

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        return np.stack([np.cos(state[0]), np.sin(state[0]), state[1]], axis=-1).astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`."""
        env = self.physics
        angle, rate = state
        torque = np.clip(actions, -env.max_torque, env.max_torque)[:, 0]
        away = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = away**2 + 0.1 * rate**2 + 0.001 * torque**2
        push = 3 * env.g / (2 * env.l) * np.sin(angle) + 3.0 / (env.m * env.l**2) * torque
        rate = np.clip(rate + push * env.dt, -env.max_speed, env.max_speed)
        return (
            np.stack([angle + rate * env.dt, rate]),
            -cost,
            np.zeros(len(cost), dtype=bool),
        )


def _wrap(angle: np.ndarray) -> np.ndarray:
    """Wrap angles to [-pi, pi], one turn at a time as Gymnasium does."""
    angle = angle.copy()
    while (high := angle > np.pi).any():
        angle[high] -= 2 * np.pi
    while (low := angle < -np.pi).any():
        angle[low] += 2 * np.pi
    return angle
