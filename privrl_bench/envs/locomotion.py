"""Gymnasium's Hopper, Walker2d and HalfCheetah (MuJoCo), vectorised over slots.

Models, constants and bounds are Gymnasium's own. MuJoCo steps every slot; observations, rewards and
terminations are computed for all slots at once. This is about twice as fast as stepping Gymnasium
environments, where half of the time is not physics.

Equal to stepping single environments bit for bit (tested): one `MjData` for each slot and one call of
`mj_step` for each step, as in Gymnasium.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.slots import StepResult, UserNumbers, log_mujoco_warnings


class LocomotionSlots(ABC):
    """`Slots` of a planar MuJoCo task.

    Args:
        config: The environment.
        count: Number of slots.
    """

    def __init__(self, config: EnvConfig, count: int):
        log_mujoco_warnings()
        made = gym.make(
            str(config.id), max_episode_steps=config.max_episode_steps, disable_env_checker=True
        )
        assert made.spec is not None
        self.count = count
        env: Any = made.unwrapped
        self._env = env
        self._limit = made.spec.max_episode_steps
        self._dt = env.dt
        data = [mujoco.MjData(env.model) for _ in range(count)]
        self._views = [(one, one.ctrl, one.qpos, one.qvel) for one in data]
        self._qpos = np.zeros((count, env.model.nq))
        self._qvel = np.zeros((count, env.model.nv))
        self._elapsed = np.zeros(count, dtype=np.int64)

    @abstractmethod
    def first_velocity(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the initial velocity's perturbation [nv]."""

    @abstractmethod
    def observed_velocity(self, qvel: np.ndarray) -> np.ndarray:
        """Return the observed velocities [k, nv]."""

    @abstractmethod
    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray | None:
        """Return whether the robot is healthy, [k]; None: no termination and no healthy reward."""

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """See `Slots.reset`."""
        env, scale = self._env, self._env._reset_noise_scale
        for slot, seed in zip(indices, seeds, strict=True):
            # The generator that `reset(seed=...)` of a Gymnasium environment creates.
            rng = np.random.Generator(np.random.PCG64(seed))
            place = env.init_qpos + rng.uniform(low=-scale, high=scale, size=env.model.nq)
            speed = env.init_qvel + self.first_velocity(rng)
            data, _, qpos, qvel = self._views[slot]
            mujoco.mj_resetData(env.model, data)
            qpos[:], qvel[:] = place, speed
            mujoco.mj_forward(env.model, data)
            self._qpos[slot], self._qvel[slot] = place, speed
        self._elapsed[indices] = 0
        return self._observe(self._qpos[indices], self._qvel[indices])

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`."""
        env = self._env
        controls = actions.astype(np.float32, copy=False)
        before = self._qpos[indices, 0]
        self._advance(indices, controls)
        qpos, qvel = self._qpos[indices], self._qvel[indices]
        rewards = env._forward_reward_weight * ((qpos[:, 0] - before) / self._dt)
        terminated = np.zeros(len(indices), dtype=bool)
        healthy = self.healthy(qpos, qvel)
        if healthy is not None:
            rewards = rewards + healthy * env._healthy_reward
            terminated = ~healthy & env._terminate_when_unhealthy
        # In single precision, as Gymnasium computes it.
        cost = env._ctrl_cost_weight * np.square(controls).sum(axis=-1)
        self._elapsed[indices] += 1
        cut = self._elapsed[indices] >= self._limit
        return StepResult(self._observe(qpos, qvel), rewards - cost, terminated, cut)

    def _advance(self, indices: np.ndarray, controls: np.ndarray) -> None:
        """Take one environment step in the slots `indices` with `controls` [k, nu]."""
        model, skip, step = self._env.model, self._env.frame_skip, mujoco.mj_step
        all_qpos, all_qvel = self._qpos, self._qvel
        for row, slot in enumerate(indices.tolist()):
            data, ctrl, qpos, qvel = self._views[slot]
            ctrl[:] = controls[row]
            step(model, data, skip)
            all_qpos[slot], all_qvel[slot] = qpos, qvel

    def _observe(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """Observations [k, nq - 1 + nv] float64: all but the position along the track."""
        return np.concatenate((qpos[:, 1:], self.observed_velocity(qvel)), axis=-1)

    def close(self) -> None:
        """See `Slots.close`."""
        self._views = []
        self._env.close()


class HopperSlots(LocomotionSlots):
    """Hopper-v5: 5 positions, 6 velocities (clipped to 10); 3 torques; terminates on a fall."""

    def first_velocity(self, rng: np.random.Generator) -> np.ndarray:
        """See `LocomotionSlots.first_velocity`."""
        scale = self._env._reset_noise_scale
        return rng.uniform(low=-scale, high=scale, size=self._env.model.nv)

    def observed_velocity(self, qvel: np.ndarray) -> np.ndarray:
        """See `LocomotionSlots.observed_velocity`."""
        return np.clip(qvel, -10, 10)

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """See `LocomotionSlots.healthy`."""
        env = self._env
        state = np.concatenate((qpos[:, 2:], qvel), axis=-1)
        least, most = env._healthy_state_range
        fine = ((least < state) & (state < most)).all(axis=-1)
        for column, (low, high) in ((1, env._healthy_z_range), (2, env._healthy_angle_range)):
            fine &= (low < qpos[:, column]) & (qpos[:, column] < high)
        return np.asarray(fine)


class Walker2dSlots(HopperSlots):
    """Walker2d-v5: 8 positions, 9 velocities (clipped to 10); 6 torques; terminates on a fall."""

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """See `LocomotionSlots.healthy`."""
        env = self._env
        fine = np.ones(len(qpos), dtype=bool)
        for column, (low, high) in ((1, env._healthy_z_range), (2, env._healthy_angle_range)):
            fine &= (low < qpos[:, column]) & (qpos[:, column] < high)
        return fine


class HalfCheetahSlots(LocomotionSlots):
    """HalfCheetah-v5: 8 positions, 9 velocities; 6 torques; never terminates."""

    def first_velocity(self, rng: np.random.Generator) -> np.ndarray:
        """See `LocomotionSlots.first_velocity`."""
        return self._env._reset_noise_scale * rng.standard_normal(self._env.model.nv)

    def observed_velocity(self, qvel: np.ndarray) -> np.ndarray:
        """See `LocomotionSlots.observed_velocity`."""
        return qvel

    def healthy(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """See `LocomotionSlots.healthy`."""
        return
