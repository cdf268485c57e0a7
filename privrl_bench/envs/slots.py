"""A fixed number of environment slots with explicit partial resets.

Gymnasium's vector environments reset by themselves and put a dummy step after each episode; here a slot
is reset only when told, with an explicit seed. So a trajectory is exactly what a user did, and
(seed, actions) is enough to bring a slot back to where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from privrl_bench.envs.declared import reset_options
from privrl_bench.errors import EnvironmentFailure

# Of an environment that declares users: whom to play in each slot, None: a simulation. None: it declares none.
Users = list[int | None] | None


class StepResult(NamedTuple):
    """What k slots returned: obs [k, D], rewards [k], terminated [k], truncated [k]."""

    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Slots(Protocol):
    """`count` environments of one kind."""

    count: int

    def reset(self, indices: np.ndarray, seeds: list[int], users: Users = None) -> np.ndarray:
        """Start new episodes in the slots `indices` [k] with `seeds`: obs [k, D].

        `users` [k]: what an environment that declares users is told of each slot; the package's own
        simulators declare none.
        """
        ...

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """Advance the slots `indices` [k] by one action each."""
        ...

    def close(self) -> None:
        """Free the environments."""
        ...


class LoopSlots:
    """Gymnasium environments stepped one after the other in this process.

    Args:
        make: builds one environment with a flat Box observation.
        count: number of slots.
        obs_dim: D.
    """

    def __init__(self, make: Callable[[], Any], count: int, obs_dim: int):
        self.count = count
        self._envs = [make() for _ in range(count)]
        self._obs_dim = obs_dim
        space = self._envs[0].action_space if count else None
        self._shape = getattr(space, "shape", ())
        self._start = int(getattr(space, "start", 0))
        self._discrete = hasattr(space, "n")
        self._dtype = getattr(space, "dtype", None)

    def reset(self, indices: np.ndarray, seeds: list[int], users: Users = None) -> np.ndarray:
        """See `Slots.reset`. Raises EnvironmentFailure with the environment's own message."""
        obs = np.empty((len(indices), self._obs_dim))
        for row, (slot, seed) in enumerate(zip(indices, seeds, strict=True)):
            batch = {} if users is None else {"options": reset_options(users[row])}
            try:
                obs[row] = np.asarray(self._envs[slot].reset(seed=seed, **batch)[0]).reshape(-1)
            except (Exception, SystemExit) as error:
                raise _failure("reset", error) from error
        return obs

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`. Raises EnvironmentFailure with the environment's own message."""
        k = len(indices)
        obs = np.empty((k, self._obs_dim))
        rewards = np.empty(k)
        terminated = np.empty(k, dtype=bool)
        truncated = np.empty(k, dtype=bool)
        for row, slot in enumerate(indices):
            action = actions[row]
            if self._discrete:
                action = int(action) + self._start
            else:
                action = action.reshape(self._shape).astype(self._dtype, copy=False)
            try:
                result = self._envs[slot].step(action)
                obs[row] = np.asarray(result[0]).reshape(-1)
                rewards[row], terminated[row], truncated[row] = result[1], result[2], result[3]
            except (Exception, SystemExit) as error:
                raise _failure("step", error) from error
        return StepResult(obs, rewards, terminated, truncated)

    def close(self) -> None:
        """See `Slots.close`."""
        for env in self._envs:
            env.close()


def _failure(call: str, error: BaseException) -> EnvironmentFailure:
    return EnvironmentFailure(f"the environment's {call} raised {type(error).__name__}: {error}")


def tame_mujoco() -> None:
    """Send MuJoCo's warnings to Python instead of a MUJOCO_LOG.TXT in the user's folder."""
    import mujoco

    def forward(message: str) -> None:
        logging.getLogger("mujoco").info(message)

    mujoco.set_mju_user_warning(forward)
