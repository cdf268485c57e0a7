"""Slots that record their episodes."""

from __future__ import annotations

import numpy as np

from privrl_bench.envs.slots import Slots, StepResult, UserNumbers
from privrl_bench.envs.spaces import as_recorded
from privrl_bench.packs.offline.datasets.trajectories import Episode, episode_of
from privrl_bench.types import EnvSpec


class RecordingSlots:
    """`Slots` that record every episode; `taken()` returns the completed ones.

    An episode that is reset before its end is recorded as truncated. Actions of a Box are recorded as the
    environment gets them.

    Args:
        slots: The recorded slots.
        spec: Public facts of the environment.
    """

    def __init__(self, slots: Slots, spec: EnvSpec):
        self.count = slots.count
        self._slots = slots
        self._sent = as_recorded(spec)
        self._obs = np.zeros((slots.count, spec.max_episode_steps + 1, spec.obs_dim), np.float32)
        shape = (slots.count, spec.max_episode_steps)
        self._actions = np.zeros(shape, np.int64)
        if not spec.discrete:
            self._actions = np.zeros((*shape, spec.actions), np.float32)
        self._rewards = np.zeros(shape, np.float32)
        self._length = np.zeros(slots.count, np.int64)
        self._over: list[Episode] = []

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """See `Slots.reset`."""
        for slot in indices[self._length[indices] > 0]:
            self._end(int(slot), terminated=False)
        obs = self._slots.reset(indices, seeds, users)
        self._obs[indices, 0] = obs
        return obs

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`."""
        actions = self._sent(actions)
        result = self._slots.step(indices, actions)
        t = self._length[indices]
        self._actions[indices, t] = actions
        self._rewards[indices, t] = result.rewards
        self._obs[indices, t + 1] = result.obs
        self._length[indices] += 1
        for row in np.flatnonzero(result.terminated | result.truncated):
            self._end(int(indices[row]), terminated=bool(result.terminated[row]))
        return result

    def _end(self, slot: int, *, terminated: bool) -> None:
        n = int(self._length[slot])
        steps = self._actions[slot, :n], self._rewards[slot, :n]
        self._over.append(episode_of(self._obs[slot, : n + 1], *steps, terminated))
        self._length[slot] = 0

    def taken(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        over, self._over = self._over, []
        return over

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the episodes in progress."""
        return {
            "obs": self._obs,
            "actions": self._actions,
            "rewards": self._rewards,
            "length": self._length,
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore `get_state`; the caller restores the slots themselves."""
        self._obs, self._actions = state["obs"].copy(), state["actions"].copy()
        self._rewards, self._length = state["rewards"].copy(), state["length"].copy()

    def close(self) -> None:
        """See `Slots.close`."""
        self._slots.close()
