"""Gymnasium's CartPole, Acrobot, MountainCar and Pendulum, vectorised over slots.

The constants are Gymnasium's own; a step is implemented here over arrays: NumPy's, equal bit for bit to
stepping single environments (tested), or torch's on any device (`env.backend=torch`, `envs/worlds.py`).
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
        count: Number of slots; 0 for `worlds.TensorWorlds`, which has the states.
        xp: numpy, or torch: the module of the arrays in `start`, `observe` and `advance`.
        device: of torch's arrays.
    """

    size: int  # S
    max_episode_steps: int  # Gymnasium's time limit in steps
    physics: Any = None  # Gymnasium's environment, for its constants

    def __init__(self, config: EnvConfig, count: int, xp: Any = np, device: str = "cpu"):
        self.count = count
        self.xp, self.device = xp, device
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
    def observe(self, state: Any) -> Any:
        """Return observations [n, D] float32 of states [S, n]."""

    @abstractmethod
    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """Step states [S, n]: return next states (new arrays), rewards [n], terminated [n]."""

    def single(self, x: Any) -> Any:
        """The array x in single precision."""
        return x.astype(np.float32) if self.xp is np else x.float()

    def whole(self, x: Any) -> Any:
        """The array x as int64."""
        return np.asarray(x, dtype=np.int64) if self.xp is np else x.long()

    def double(self, x: Any) -> Any:
        """The array x in double precision."""
        return np.asarray(x, dtype=np.float64) if self.xp is np else x.double()

    def constant(self, x: np.ndarray) -> Any:
        """The table x as an array of `xp`."""
        return x if self.xp is np else self.xp.as_tensor(x, device=self.device)

    def copied(self, state: Any) -> Any:
        """A copy of an array."""
        return state.copy() if self.xp is np else state.clone()

    def picked(self, rows: Any, index: Any) -> Any:
        """The numbers [n] of rows [m, n] at the rows `index` [n]."""
        return rows[index, self.xp.arange(len(index), device=rows.device)]

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


class TorchSlots(ClassicSlots):
    """Slots whose dynamics are written for torch, too."""

    draws: int  # uniform numbers that `start` takes

    @abstractmethod
    def start(self, uniforms: Any) -> Any:
        """Initial states [S, n] of the same distribution from uniform numbers [draws, n] in torch."""


class CartPoleSlots(TorchSlots):
    """CartPole-v1: cart position and velocity, pole angle and rate [m, m/s, rad, rad/s]."""

    size, max_episode_steps, draws = 4, 500, 4
    physics = CartPoleEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return rng.uniform(low=-0.05, high=0.05, size=(4,))

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        return 0.1 * uniforms - 0.05

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        return self.single(state.T)

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`; one Euler step."""
        env, xp = self.physics, self.xp
        angle, rate = state[2], state[3]
        force = xp.where(actions == 1, env.force_mag, -env.force_mag)
        cos, sin = xp.cos(angle), xp.sin(angle)
        inertia = env.length * (4.0 / 3.0 - env.masspole * xp.square(cos) / env.total_mass)
        push = (force + env.polemass_length * xp.square(rate) * sin) / env.total_mass
        turn = (env.gravity * sin - cos * push) / inertia
        slope = xp.empty_like(state)
        slope[0], slope[2] = state[1], rate
        slope[1] = push - env.polemass_length * turn * cos / env.total_mass
        slope[3] = turn
        after = state + env.tau * slope
        out = xp.abs(after[0]) > env.x_threshold
        out |= xp.abs(after[2]) > env.theta_threshold_radians
        return after, xp.ones_like(angle), out


class AcrobotSlots(TorchSlots):
    """Acrobot-v1: angles and rates of two links [rad, rad/s]; torque -1, 0 or 1 N m."""

    size, max_episode_steps, draws = 4, 500, 4
    physics = AcrobotEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return rng.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        return 0.2 * uniforms - 0.1

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        cos, sin = self.xp.cos(state[:2]), self.xp.sin(state[:2])
        parts = (cos[0], sin[0], cos[1], sin[1], state[2], state[3])
        return self.single(self.xp.stack(parts, -1))

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`; one classical Runge-Kutta step."""
        xp, dt = self.xp, self.physics.dt
        torque = self.double(actions) - 1.0
        k1 = self._slope(state, torque)
        k2 = self._slope(state + dt / 2.0 * k1, torque)
        k3 = self._slope(state + dt / 2.0 * k2, torque)
        k4 = self._slope(state + dt * k3, torque)
        after = state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        for row in (0, 1):
            after[row] = self._wrapped(after[row])
        for row, most in ((2, self.physics.MAX_VEL_1), (3, self.physics.MAX_VEL_2)):
            after[row] = xp.clip(after[row], -most, most)
        up = -xp.cos(after[0]) - xp.cos(after[1] + after[0]) > 1.0
        return after, xp.where(up, 0.0, -1.0), up

    def _wrapped(self, angle: Any) -> Any:
        """Angles in [-pi, pi], wrapped one turn at a time as Gymnasium does."""
        while (high := angle > np.pi).any():
            angle = self.xp.where(high, angle - 2 * np.pi, angle)
        while (low := angle < -np.pi).any():
            angle = self.xp.where(low, angle + 2 * np.pi, angle)
        return angle

    def _slope(self, state: Any, torque: Any) -> Any:
        """Time derivative [4, n] of states (Sutton and Barto 1998, section 11.3)."""
        env, xp, g = self.physics, self.xp, 9.8
        m1, m2, l1 = env.LINK_MASS_1, env.LINK_MASS_2, env.LINK_LENGTH_1
        c1, c2, inertia = env.LINK_COM_POS_1, env.LINK_COM_POS_2, env.LINK_MOI
        first, second, rate1, rate2 = state
        cos, sin = xp.cos(second), xp.sin(second)
        d1 = m1 * c1**2 + m2 * (l1**2 + c2**2 + 2 * l1 * c2 * cos) + inertia + inertia
        d2 = m2 * (c2**2 + l1 * c2 * cos) + inertia
        phi2 = m2 * c2 * g * xp.cos(first + second - np.pi / 2.0)
        phi1 = (
            -m2 * l1 * c2 * rate2**2 * sin
            - 2 * m2 * l1 * c2 * rate2 * rate1 * sin
            + (m1 * c1 + m2 * l1) * g * xp.cos(first - np.pi / 2)
            + phi2
        )
        free = torque + d2 / d1 * phi1 - m2 * l1 * c2 * rate1**2 * sin - phi2
        turn2 = free / (m2 * c2**2 + inertia - d2**2 / d1)
        turn1 = -(d2 * turn2 + phi1) / d1
        return xp.stack((rate1, rate2, turn1, turn2))


class MountainCarSlots(TorchSlots):
    """MountainCar-v0: position and velocity; accelerate left, not, right."""

    size, max_episode_steps, draws = 2, 200, 1
    physics = MountainCarEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return np.array([rng.uniform(low=-0.6, high=-0.4), 0.0])

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        return self.xp.cat((0.2 * uniforms - 0.6, 0.0 * uniforms))

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        return self.single(state.T)

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`."""
        env, xp = self.physics, self.xp
        place, speed = state
        hill, pushes = self._cosine(3 * place), self.double(actions) - 1.0
        speed = speed + (pushes * env.force + hill * (-env.gravity))
        speed = xp.clip(speed, -env.max_speed, env.max_speed)
        place = xp.clip(place + speed, env.min_position, env.max_position)
        speed[(place == env.min_position) & (speed < 0)] = 0.0
        there = (place >= env.goal_position) & (speed >= env.goal_velocity)
        return xp.stack((place, speed)), -xp.ones_like(place), there

    def _cosine(self, x: Any) -> Any:
        # NumPy's may differ in the last bit from Python's, which Gymnasium uses.
        scalar = self.xp is np
        return np.fromiter(map(math.cos, x.tolist()), float, len(x)) if scalar else self.xp.cos(x)


class PendulumSlots(TorchSlots):
    """Pendulum-v1: angle and rate [rad, rad/s]; torque in [-2, 2] N m."""

    size, max_episode_steps, draws = 2, 200, 2
    physics = PendulumEnv()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        high = np.array([np.pi, 1.0])
        return rng.uniform(low=-high, high=high)

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        return self.xp.stack((np.pi * (2.0 * uniforms[0] - 1.0), 2.0 * uniforms[1] - 1.0))

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        xp = self.xp
        return self.single(xp.stack((xp.cos(state[0]), xp.sin(state[0]), state[1]), -1))

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`."""
        env, xp = self.physics, self.xp
        angle, rate = state
        torque = xp.clip(actions, -env.max_torque, env.max_torque)[:, 0]
        away = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = away**2 + 0.1 * rate**2 + 0.001 * torque**2
        push = 3 * env.g / (2 * env.l) * xp.sin(angle) + 3.0 / (env.m * env.l**2) * torque
        rate = xp.clip(rate + push * env.dt, -env.max_speed, env.max_speed)
        return xp.stack((angle + rate * env.dt, rate)), -cost, xp.isnan(cost) & False
