"""Worlds of MuJoCo Warp, in single precision (`env.backend=warp`; the extra `gpu`).

Models, constants and bounds are Gymnasium's and dm_control's own; observations, rewards and ends are computed
for all worlds at once, rewards in double precision from Warp's state.

Worlds share the buffers of contacts. Warp is asked for its deterministic order of contacts, constraints and
sums, and a buffer that overflows is an error. That no world moves another to the last bit is tested on the CPU
only, and Warp's code was not reviewed for it: guarantees are `heuristic` (`users/simulated.py`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import gymnasium as gym
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.cartpole_dmc import suite_model
from privrl_bench.envs.slots import log_mujoco_warnings
from privrl_bench.envs.worlds import Worlds
from privrl_bench.errors import EnvironmentFailure

# A solver that stops at its limit of iterations is MuJoCo's own behaviour.
_HARMLESS = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS


class WarpWorlds(Worlds):
    """Worlds of one MuJoCo model.

    Args:
        model: of MuJoCo.
        skip: simulator steps of one environment step.
        count: number of worlds.
        device: torch device.
    """

    def __init__(self, model: Any, skip: int, count: int, device: str):
        wp.config.log_level = wp.LOG_ERROR
        log_mujoco_warnings()
        self.count, self.draws = count, model.nq + model.nv
        self._skip = skip
        with wp.ScopedDevice(device):
            self._model = mjw.put_model(model)
            self._model.opt.deterministic = int(mjw.DeterminismType.ALL)
            self._model.opt.warn_overflow = 0
            self._data = mjw.make_data(model, nworld=count)
        shared = (self._data.qpos, self._data.qvel, self._data.ctrl, self._data.qacc_warmstart)
        self.qpos, self.qvel, self._ctrl, self._warm = map(wp.to_torch, shared)
        self._overflow = wp.to_torch(self._data.overflow)
        self._graph: Any = None
        if torch.device(device).type == "cuda":
            self._simulate()  # loads the kernels, which a graph cannot
            torch.cuda.synchronize()
            with wp.ScopedDevice(device), wp.ScopedCapture() as capture:
                self._simulate()
            self._graph = capture.graph
        # Worlds that no user has begin in the middle.
        middle = torch.full((self.draws, count), 0.5, dtype=torch.float64, device=device)
        self.reset(torch.ones(count, dtype=torch.bool, device=device), middle)

    @abstractmethod
    def start(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Initial positions [nq, count] and velocities [nv, count]."""

    def reset(self, where: Tensor, uniforms: Tensor) -> None:
        """See `Worlds.reset`."""
        for state, new in zip((self.qpos, self.qvel), self.start(uniforms.double()), strict=True):
            state.copy_(torch.where(where[:, None], new.T.to(state), state))
        self._warm.masked_fill_(where[:, None], 0.0)

    def simulate(self, controls: Tensor) -> None:
        """One environment step of all worlds with controls [count, nu]."""
        self._ctrl.copy_(controls)
        if self._graph is None:
            self._simulate()
        else:
            stream = wp.stream_from_torch(torch.cuda.current_stream(self.qpos.device))
            wp.capture_launch(self._graph, stream=stream)

    def _simulate(self) -> None:
        for _ in range(self._skip):
            mjw.step(self._model, self._data)

    def check(self) -> None:
        """See `Worlds.check`."""
        if bool(((self._overflow & ~int(_HARMLESS)) != 0).any()):
            raise EnvironmentFailure(
                "a buffer of MuJoCo Warp that all users share is full; use env.backend=auto"
            )
        self._overflow.zero_()


# --- Gymnasium


class LocomotionWorlds(WarpWorlds):
    """A task of Gymnasium.

    Args:
        config: the environment.
        count: number of worlds.
        device: torch device.
    """

    hidden = 1  # first positions, which are not observed

    def __init__(self, config: EnvConfig, count: int, device: str):
        made = gym.make(str(config.id), disable_env_checker=True, **config.kwargs)
        env: Any = made.unwrapped
        self.env, self._dt = env, env.dt
        start = np.concatenate((env.init_qpos, env.init_qvel))[:, None]
        self._first = torch.from_numpy(start).to(device)
        super().__init__(env.model, env.frame_skip, count, device)

    def start(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """See `WarpWorlds.start`."""
        size, count = self.env._reset_noise_scale, self.env.model.nq
        place, speed = uniforms[:count], uniforms[count:]
        moved = torch.cat((2.0 * place - 1.0, self.first_velocity(speed)))
        found = self._first + size * moved
        return found[:count], found[count:]

    def first_velocity(self, uniforms: Tensor) -> Tensor:
        """The initial velocities' perturbation [nv, count] in units of its scale."""
        return torch.special.ndtri(uniforms + 2.0**-25)

    def observe(self) -> Tensor:
        """See `Worlds.observe`."""
        return self.observation(self.qpos, self.qvel)

    def observation(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """Observations of positions [k, nq] and velocities [k, nv], in their precision."""
        return torch.cat((qpos[:, self.hidden :], qvel), -1)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `Worlds.step`."""
        controls, before = actions.float(), self.place().double()
        self.simulate(controls)
        healthy = self.healthy(self.qpos.double(), self.qvel.double())
        rewards = self.reward(before, self.place().double(), healthy, controls)
        terminate = getattr(self.env, "_terminate_when_unhealthy", False)
        return rewards, ~healthy & terminate

    def place(self) -> Tensor:
        """Where the robots are along the track, [count]."""
        return self.qpos[:, 0].clone()

    def reward(self, before: Tensor, after: Tensor, healthy: Tensor, controls: Tensor) -> Tensor:
        """Rewards [k] of steps from `before` to `after` [k] along the track with controls [k, nu]."""
        env = self.env
        bonus = getattr(env, "_healthy_reward", 0.0)
        forward = env._forward_reward_weight * ((after - before) / self._dt) + healthy * bonus
        # In single precision and in order, as Gymnasium's sums of up to seven numbers.
        return forward - env._ctrl_cost_weight * sum(controls.square().unbind(-1))

    def healthy(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """Whether robots are healthy, [k]."""
        return torch.ones_like(qpos[:, 0], dtype=torch.bool)


class HalfCheetahWorlds(LocomotionWorlds):
    """HalfCheetah-v5."""


class Walker2dWorlds(LocomotionWorlds):
    """Walker2d-v5."""

    def first_velocity(self, uniforms: Tensor) -> Tensor:
        """See `LocomotionWorlds.first_velocity`."""
        return 2.0 * uniforms - 1.0

    def observation(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """See `LocomotionWorlds.observation`."""
        return torch.cat((qpos[:, self.hidden :], qvel.clip(-10.0, 10.0)), -1)

    def healthy(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """See `LocomotionWorlds.healthy`."""
        env, fine = self.env, super().healthy(qpos, qvel)
        for column, (low, high) in ((1, env._healthy_z_range), (2, env._healthy_angle_range)):
            fine &= (low < qpos[:, column]) & (qpos[:, column] < high)
        return fine


class HopperWorlds(Walker2dWorlds):
    """Hopper-v5."""

    def healthy(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """See `LocomotionWorlds.healthy`."""
        low, high = self.env._healthy_state_range
        state = torch.cat((qpos[:, 2:], qvel), -1)
        return super().healthy(qpos, qvel) & ((low < state) & (state < high)).all(-1)


class AntWorlds(LocomotionWorlds):
    """Ant-v5 without contact forces in observations; their cost is in the reward."""

    hidden = 2

    def __init__(self, config: EnvConfig, count: int, device: str):
        self._torso: Any = None  # [count, 3], MuJoCo's position of the last simulator step
        super().__init__(config, count, device)
        self._torso = wp.to_torch(self._data.xpos)[:, self.env.data.body(self.env._main_body).id]
        self._forces = wp.to_torch(self._data.cfrc_ext)
        self._torso.copy_(self.qpos[:, :3])

    def reset(self, where: Tensor, uniforms: Tensor) -> None:
        """See `Worlds.reset`."""
        super().reset(where, uniforms)
        if self._torso is not None:
            self._torso.copy_(torch.where(where[:, None], self.qpos[:, :3], self._torso))

    def _simulate(self) -> None:
        super()._simulate()
        mjw.rne_postconstraint(self._model, self._data)

    def place(self) -> Tensor:
        """See `LocomotionWorlds.place`."""
        return self._torso[:, 0].clone()

    def reward(self, before: Tensor, after: Tensor, healthy: Tensor, controls: Tensor) -> Tensor:
        """See `LocomotionWorlds.reward`."""
        low, high = self.env._contact_force_range
        cost = self._forces.double().clip(low, high).square().sum((1, 2))
        found = super().reward(before, after, healthy, controls)
        return found - self.env._contact_cost_weight * cost

    def healthy(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """See `LocomotionWorlds.healthy`."""
        low, high = self.env._healthy_z_range
        finite = torch.isfinite(qpos).all(-1) & torch.isfinite(qvel).all(-1)
        return finite & (low <= qpos[:, 2]) & (qpos[:, 2] <= high)


# --- dm_control


class CartpoleWorlds(WarpWorlds):
    """dm_control's cartpole-balance."""

    domain = "cartpole"

    def __init__(self, config: EnvConfig, count: int, device: str):
        model = suite_model(self.domain)
        super().__init__(model, 1, count, device)

    def start(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """See `WarpWorlds.start`."""
        place = torch.stack((0.2 * uniforms[0] - 0.1, 0.068 * uniforms[1] - 0.034))
        return place, 0.01 * torch.special.ndtri(uniforms[2:] + 2.0**-25)

    def observe(self) -> Tensor:
        """See `Worlds.observe`."""
        return self.observation(self.qpos.double(), self.qvel.double())

    def observation(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """Observations of positions [k, nq] and velocities [k, nv]."""
        angle = qpos[:, 1]
        parts = (qpos[:, 0], angle.cos(), angle.sin(), qvel[:, 0], qvel[:, 1])
        return torch.stack(parts, -1)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `Worlds.step`."""
        self.simulate(actions)
        rewards = self.reward(self.qpos.double(), self.qvel.double(), actions[:, 0].double())
        return rewards, rewards < -math.inf

    def reward(self, qpos: Tensor, qvel: Tensor, control: Tensor) -> Tensor:
        """The suite's smooth reward [k] of states and controls [k]."""
        upright, centred = (qpos[:, 1].cos() + 1) / 2, (1 + _near(qpos[:, 0], 2.0)) / 2
        calm = (4 + (1 - control.square()).clip(0.0)) / 5
        return upright * calm * (1 + _near(qvel[:, 1], 5.0)) / 2 * centred


class SwingupWorlds(CartpoleWorlds):
    """dm_control's cartpole-swingup."""

    def start(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """See `WarpWorlds.start`."""
        small = 0.01 * torch.special.ndtri(uniforms + 2.0**-25)
        return torch.stack((small[0], math.pi + small[1])), small[2:]


class PendulumWorlds(CartpoleWorlds):
    """dm_control's pendulum-swingup."""

    domain = "pendulum"

    def start(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """See `WarpWorlds.start`."""
        return math.pi * (2.0 * uniforms[:1] - 1.0), 0.0 * uniforms[1:]

    def observation(self, qpos: Tensor, qvel: Tensor) -> Tensor:
        """See `CartpoleWorlds.observation`."""
        return torch.cat((qpos.cos(), qpos.sin(), qvel), -1)

    def reward(self, qpos: Tensor, qvel: Tensor, control: Tensor) -> Tensor:
        """The suite's reward: 1 within 8 degrees of upright, else 0."""
        return (qpos[:, 0].cos() >= math.cos(math.radians(8.0))).double()


def _near(x: Tensor, margin: float) -> Tensor:
    """The suite's `tolerance` of 0 with a Gaussian margin, where it is 0.1."""
    return torch.exp(-0.5 * (x / margin * math.sqrt(-2.0 * math.log(0.1))).square())
