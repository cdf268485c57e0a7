"""A fixed number of environment slots with explicit partial resets and steps.

Unlike Gymnasium's vector environments, any subset of the slots can be stepped, and a slot is reset only by
`reset`, with an explicit seed. Hence (seed, actions) reproduces the state of a slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from privrl_bench.envs.spaces import ActionMap
from privrl_bench.envs.user_declaration import reset_options
from privrl_bench.errors import EnvironmentFailure

# The declared user of each slot, None: a simulated one. None: the environment declares no users.
UserNumbers = list[int | None] | None


class StepResult(NamedTuple):
    """Results of k slots: obs [k, D], rewards [k], terminated [k], truncated [k]."""

    obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Slots(Protocol):
    """`count` environments of one kind."""

    count: int

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """Start new episodes.

        Args:
            indices: [k] slots.
            seeds: [k].
            users: [k] for an environment that declares users; the package's own simulators declare none.

        Returns:
            Observations [k, D].
        """
        ...

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """Step the slots `indices` [k] with one action each."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class LoopSlots:
    """Gymnasium environments stepped sequentially in this process.

    Args:
        make: Makes one environment with a flat Box observation.
        count: Number of slots.
    """

    def __init__(self, make: Callable[[], Any], count: int):
        self.count = count
        self._envs = [make() for _ in range(count)]
        self._obs_dim = int(np.prod(self._envs[0].observation_space.shape)) if count else 0
        space = self._envs[0].action_space if count else None
        self._map = ActionMap(space) if count else None
        self._discrete = getattr(space, "shape", None) == () and hasattr(space, "n")

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """See `Slots.reset`. Raises EnvironmentFailure with the environment's own message."""
        obs = np.empty((len(indices), self._obs_dim))
        for row, (slot, seed) in enumerate(zip(indices, seeds, strict=True)):
            more = {} if users is None else {"options": reset_options(users[row])}
            try:
                obs[row] = np.asarray(self._envs[slot].reset(seed=seed, **more)[0]).reshape(-1)
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
        sent = np.empty(0) if self._map is None else self._map(actions)
        for row, slot in enumerate(indices):
            try:
                result = self._envs[slot].step(int(sent[row]) if self._discrete else sent[row, ...])
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


def log_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to Python's logging instead of a MUJOCO_LOG.TXT in the working folder."""
    import mujoco

    def forward(message: str) -> None:
        logging.getLogger("mujoco").info(message)

    mujoco.set_mju_user_warning(forward)
