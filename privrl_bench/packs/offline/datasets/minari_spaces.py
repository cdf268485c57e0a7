"""Gymnasium spaces of stored datasets: flattening of whole episodes, checks and dtypes.

Gymnasium is imported where it is used, so that opening a cached dataset does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.trajectories import Episode

if TYPE_CHECKING:
    import gymnasium as gym


def flat_space(space: gym.Space) -> gym.spaces.Box:
    """Return the space of flattened elements, a Box [D] float32.

    Raises:
        ConfigError: The elements have no fixed size.
    """
    from gymnasium import spaces

    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        raise ConfigError("data.id", f"{space} has elements of no fixed size")
    with np.errstate(over="ignore"):
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def flat_action_space(space: gym.Space) -> gym.Space:
    """Return a Discrete space unchanged and a Box as Box [A] float32.

    Raises:
        ConfigError: The space is neither.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return space
    if isinstance(space, spaces.Box):
        return flat_space(space)
    raise ConfigError("data.id", f"actions must be in a Box or Discrete space, not in {space}")


def check_choices(actions: np.ndarray, number: int, space: gym.Space) -> None:
    """Check that the actions of episode `number` are in a Discrete `space`.

    Raises:
        ConfigError: An action is outside the space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
        if actions.min() < low or actions.max() > high:
            raise ConfigError("data.id", f"episode {number}: actions outside {low} to {high}")


def flatten_steps(space: gym.Space, values: Any) -> np.ndarray:
    """Flatten n elements of a space at once, equal to `gymnasium.spaces.flatten` of each.

    Args:
        space: Of the elements.
        values: Array [n, ...], nested like a Dict or Tuple space.

    Returns:
        [n, D] float32.

    Raises:
        ValueError: The values do not fit the space.
        TypeError: The values do not fit the space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [flatten_steps(part, values[key]) for key, part in space.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [flatten_steps(part, values[i]) for i, part in enumerate(space)]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Text):
        return np.array([spaces.flatten(space, text) for text in values], dtype=np.float32)
    array = np.atleast_1d(values)
    flat = array.reshape(len(array), int(np.prod(array.shape[1:])))
    if isinstance(space, spaces.Discrete):
        return _one_hot(flat - space.start, np.array([space.n]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(flat - space.start.ravel(), space.nvec.ravel())
    with np.errstate(over="ignore"):
        return flat.astype(np.float32)


def _one_hot(choices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Encode choices [n, m], counted from 0, as [n, sum of sizes] float32."""
    if ((choices < 0) | (choices >= sizes)).any():
        raise ValueError("a choice outside its space")
    hot = np.zeros((len(choices), int(sizes.sum())), dtype=np.float32)
    columns = choices + np.cumsum(sizes) - sizes
    np.put_along_axis(hot, columns.astype(np.int64), 1.0, axis=1)
    return hot


def as_stored(episode: Episode) -> Episode:
    """Cast an episode to the stored dtypes.

    Values that overflow become infinite; `check_episode` rejects them later.
    """
    actions = np.asarray(episode.actions)
    choices = np.issubdtype(actions.dtype, np.integer) and actions.ndim == 1
    probs = episode.behavior_probs
    with np.errstate(over="ignore"):
        return Episode(
            observations=np.asarray(episode.observations, dtype=np.float32),
            actions=actions.astype(np.int64 if choices else np.float32, copy=False),
            rewards=np.asarray(episode.rewards, dtype=np.float32),
            terminated=np.asarray(episode.terminated, dtype=bool),
            truncated=np.asarray(episode.truncated, dtype=bool),
            user=episode.user,
            behavior_probs=None if probs is None else np.asarray(probs, dtype=np.float32),
            labels=episode.labels,
        )
