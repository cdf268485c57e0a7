"""dm_control's cartpole (balance and swingup), vectorised over slots in NumPy.

A cart on a rail with a pole on a hinge, in closed form: one Runge-Kutta step of 0.01 s as in MuJoCo, with
the constants of the suite's compiled model. The soft stops at the ends of the rail are not in the
equations, so MuJoCo computes any step that reaches one. Its solver is warm-started with the accelerations
of the previous step and converges to 1e-8 only, so the accelerations are part of the state. Equal to
stepping dm_control up to rounding (tested). A slot depends on its own seed and actions only.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import mujoco
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import ClassicSlots
from privrl_bench.envs.slots import log_mujoco_warnings

NEAR = 1e-9  # [m] a step this close to a stop is computed by MuJoCo; far above rounding


@cache
def suite_model(domain: str) -> Any:
    """The suite's compiled model of a domain, which is not modified."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing display; nothing is rendered
        module = importlib.import_module(f"dm_control.suite.{domain}")
    return mujoco.MjModel.from_xml_string(*module.get_model_and_assets())


class DmcCartpoleSlots(ClassicSlots):
    """Slots of the cartpole. The action is a force in [-1, 1].

    State [6, n]: cart position, pole angle (0 is upright), their velocities [m, rad, m/s, rad/s] and the
    accelerations [m/s^2, rad/s^2] of MuJoCo's warm start. Observations [n, 5] float64: position, cosine
    and sine of the angle, the two velocities.
    """

    size, max_episode_steps = 6, 1000

    def __init__(self, config: EnvConfig, count: int):
        super().__init__(config, count)
        # dm_control's own limit also applies.
        self._max_episode_steps = min(self._max_episode_steps, self.max_episode_steps)
        log_mujoco_warnings()
        self._model = suite_model("cartpole")
        from dm_control.utils import rewards  # after the suite, whose import warns

        self._tolerance = rewards.tolerance
        model, pole = self._model, 2
        self._data = data = mujoco.MjData(model)
        self._views = (data.qpos, data.qvel, data.qacc_warmstart, data.ctrl)
        mass, arm = model.body_mass[pole], model.body_ipos[pole, 2]
        self._total = model.body_mass[1:].sum()  # kg
        self._moment = mass * arm  # kg m
        self._inertia = model.body_inertia[pole, 0] + mass * arm**2  # about the hinge, kg m^2
        self._weight = -model.opt.gravity[2] * self._moment  # N m
        self._damping = model.dof_damping  # N s/m, N m s/rad
        self._gear = model.actuator_gear[0, 0]  # N
        self._range = model.actuator_ctrlrange[0]
        self._rail = model.jnt_range[0, 1]  # m, either way
        self._dt = model.opt.timestep  # s

    def generator(self, seed: int) -> Any:
        """The suite's generator after `reset(seed=...)`."""
        return np.random.RandomState(seed)

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`: [n, 5] float64."""
        x, angle, speed, rate = state[:4]
        return np.stack([x, np.cos(angle), np.sin(angle), speed, rate], axis=-1)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`; actions [n, 1]."""
        control = np.clip(actions[:, 0].astype(np.float64, copy=False), *self._range)
        after, reach = self._swing(state, self._gear * control)
        for i in np.flatnonzero(reach > self._rail - NEAR):
            after[:, i] = self._bump(state[:, i], control[i])
        return after, self._reward(after, control), np.zeros(len(control), dtype=bool)

    def _slope(self, state: np.ndarray, force: np.ndarray) -> np.ndarray:
        """Time derivative [4, n] of positions and velocities away from the stops; `force` [n] in N."""
        speed, rate = state[2], state[3]
        sin = np.sin(state[1])
        coupling = self._moment * np.cos(state[1])
        push = force - self._damping[0] * speed + self._moment * np.square(rate) * sin
        turn = self._weight * sin - self._damping[1] * rate
        det = self._total * self._inertia - np.square(coupling)
        slope = np.empty_like(state)
        slope[:2] = state[2:]
        slope[2] = (self._inertia * push - coupling * turn) / det
        slope[3] = (self._total * turn - coupling * push) / det
        return slope

    def _swing(self, state: np.ndarray, force: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step without stops: next states [6, n] and the largest |x| [n] of its stages."""
        dt, state = self._dt, state[:4]
        k1 = self._slope(state, force)
        second = state + dt / 2 * k1
        k2 = self._slope(second, force)
        third = state + dt / 2 * k2
        k3 = self._slope(third, force)
        fourth = state + dt * k3
        k4 = self._slope(fourth, force)
        reach = np.abs([state[0], second[0], third[0], fourth[0]]).max(axis=0)
        after = state + dt / 6 * (k1 + 2 * (k2 + k3) + k4)
        return np.concatenate((after, k4[2:])), reach

    def _bump(self, state: np.ndarray, control: float) -> np.ndarray:
        """Next state [6] of a state [6], by MuJoCo."""
        qpos, qvel, warm, ctrl = self._views
        qpos[:], qvel[:], warm[:], ctrl[0] = state[:2], state[2:4], state[4:], control
        mujoco.mj_step(self._model, self._data)
        return np.concatenate((qpos, qvel, warm))

    def _reward(self, state: np.ndarray, control: np.ndarray) -> np.ndarray:
        """The suite's smooth reward [n] of next states [6, n]."""
        tolerance = self._tolerance
        upright = (np.cos(state[1]) + 1) / 2
        centred = (1 + tolerance(state[0], margin=2)) / 2
        calm = tolerance(control, margin=1, value_at_margin=0, sigmoid="quadratic")
        slow = (1 + tolerance(state[3], margin=5)) / 2
        return np.asarray(upright * ((4 + calm) / 5) * slow * centred)


class BalanceSlots(DmcCartpoleSlots):
    """cartpole-balance: the pole starts nearly upright."""

    def begin(self, rng: Any) -> np.ndarray:
        """See `ClassicSlots.begin`; in the suite's order."""
        x, angle = rng.uniform(-0.1, 0.1), rng.uniform(-0.034, 0.034)
        return np.array([x, angle, *0.01 * rng.randn(2), 0.0, 0.0])


class SwingupSlots(DmcCartpoleSlots):
    """cartpole-swingup: the pole starts hanging."""

    def begin(self, rng: Any) -> np.ndarray:
        """See `ClassicSlots.begin`; in the suite's order."""
        x, angle = 0.01 * rng.randn(), np.pi + 0.01 * rng.randn()
        return np.array([x, angle, *0.01 * rng.randn(2), 0.0, 0.0])
