"""Recorded episodes and their validation.

Axes: K episodes, T steps of one episode, N steps of all, D observation size, A action size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.user_keys import Label, Labels

_BLOCK = 1 << 20  # steps in memory at once


class Episode(NamedTuple):
    """One recorded episode.

    Attributes:
        observations: [T + 1, D] float32.
        actions: [T, A] float32, or [T] int64 for discrete actions.
        rewards: [T] float32.
        terminated: [T] bool, true at the last step at most.
        truncated: [T] bool, true at the last step at most.
        user: Its user; None: a user of its own, or named by `labels`.
        behavior_probs: [T] float32 in (0, 1], probability of each action under the behaviour policy;
            None: not known.
        labels: Scalar values of its metadata.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    user: str | None = None
    behavior_probs: np.ndarray | None = None
    labels: dict[str, Label] | None = None


def episode_of(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: bool,
    behavior_probs: np.ndarray | None = None,
    user: str | None = None,
) -> Episode:
    """Return an episode with copies of the arrays, truncated if it did not terminate; see `Episode`."""
    last = np.arange(len(rewards)) == len(rewards) - 1
    return Episode(
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards),
        terminated=last & terminated,
        truncated=last & (not terminated),
        user=user,
        behavior_probs=None if behavior_probs is None else np.array(behavior_probs),
    )


@dataclass(eq=False)
class Trajectories:
    """K concatenated episodes; the large arrays may be memory-mapped files.

    Attributes:
        observations: [N + K, D] float32; those of episode k start at `starts[k] + k`.
        actions: [N, A] float32 or [N] int64.
        rewards: [N] float32.
        terminated: [N] bool, true at the last step of an episode at most.
        starts: [K + 1] int64, first step of each episode, then N.
        users: [K] int64, user of each episode, below `user_count`.
        env_id: Environment of the episodes, if known.
        card: Further information about the data.
        behavior_probs: [N] float32, probability of each action under the behaviour policy; None: not known.
        labels: Of the episodes' metadata, each a list of length K.
        user_key: Key of the metadata that names the users; None: each episode is a user.
        repeated: Other keys whose values repeat over episodes.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    starts: np.ndarray
    users: np.ndarray
    env_id: str | None = None
    card: dict[str, Any] = field(default_factory=dict)
    behavior_probs: np.ndarray | None = None
    labels: Labels = field(default_factory=dict)
    user_key: str | None = None
    repeated: tuple[str, ...] = ()

    @property
    def episodes(self) -> int:
        """K."""
        return len(self.users)

    @property
    def steps(self) -> int:
        """N."""
        return int(self.starts[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode, [K]."""
        return np.diff(self.starts)

    @property
    def user_count(self) -> int:
        """Number of users."""
        return int(self.users.max()) + 1

    def episode(self, k: int) -> Episode:
        """Return a copy of episode `k`, truncated if it did not terminate; `user` is the user's number.

        Raises:
            IndexError: There is no episode `k`.
        """
        k = range(self.episodes)[k]
        first, last = int(self.starts[k]), int(self.starts[k + 1])
        return episode_of(
            self.observations[first + k : last + k + 1],
            self.actions[first:last],
            self.rewards[first:last],
            bool(self.terminated[last - 1]),
            None if self.behavior_probs is None else self.behavior_probs[first:last],
            str(self.users[k]),
        )

    def returns(self) -> np.ndarray:
        """Return the undiscounted returns, [K] float64."""
        found = np.empty(self.episodes)
        for block in blocks(self.lengths, _BLOCK):
            first, last = int(self.starts[block.start]), int(self.starts[block.stop])
            rewards = self.rewards[first:last].astype(np.float64)
            found[block] = np.add.reduceat(rewards, self.starts[block] - first)
        return found


def blocks(lengths: np.ndarray, most: int) -> Iterator[slice]:
    """Group consecutive episodes of `lengths` [n] into blocks of at most `most` steps, or of one episode.

    >>> list(blocks(np.array([2, 2, 9, 1]), 4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(lengths)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(first, last)
        first = last


def check_episode(
    episode: Episode,
    number: int,
    obs_dim: int | None = None,
    action_shape: tuple[int, ...] | None = None,
) -> None:
    """Check shapes and values of an episode.

    Args:
        episode: The episode.
        number: Its number, for messages.
        obs_dim: D; None: any.
        action_shape: (A,), or () for discrete actions; None: any.

    Raises:
        ConfigError: On data.id, naming the episode and the field.
    """
    steps = len(episode.rewards)
    if steps == 0:
        raise invalid_episode(number, "has no steps")
    for name in ("actions", "rewards", "terminated", "truncated"):
        shape = getattr(episode, name).shape
        if shape[:1] != (steps,) or (name != "actions" and len(shape) != 1):
            raise invalid_episode(
                number, f"{name} are {list(shape)}, but there are {steps} rewards"
            )
    shape = episode.observations.shape
    if len(shape) != 2 or shape[0] != steps + 1:
        raise invalid_episode(number, f"observations are {list(shape)}, must be [{steps + 1}, D]")
    if obs_dim is not None and shape[1] != obs_dim:
        raise invalid_episode(number, f"observations have {shape[1]} numbers, must have {obs_dim}")
    _check_actions(episode.actions, number, action_shape)
    for name in ("observations", "actions", "rewards"):
        if not np.isfinite(getattr(episode, name)).all():
            raise invalid_episode(number, f"{name} have non-finite values")
    for name in ("terminated", "truncated"):
        if getattr(episode, name)[:-1].any():
            raise invalid_episode(number, f"is {name} before its last step")
    if not (episode.terminated[-1] or episode.truncated[-1]):
        raise invalid_episode(number, "is neither terminated nor truncated at its last step")
    _check_probs(episode.behavior_probs, number, steps)


def _check_probs(behavior_probs: np.ndarray | None, number: int, steps: int) -> None:
    if behavior_probs is None:
        return
    if behavior_probs.shape != (steps,):
        raise invalid_episode(
            number,
            f"behavior_probs are {list(behavior_probs.shape)}, but there are {steps} rewards",
        )
    if not ((behavior_probs > 0) & (behavior_probs <= 1)).all():  # NaN is neither
        worst = behavior_probs[~((behavior_probs > 0) & (behavior_probs <= 1))][0]
        raise invalid_episode(
            number,
            f"behavior_probs must be in (0, 1], of the chosen action; got {worst:g}",
        )


def _check_actions(actions: np.ndarray, number: int, action_shape: tuple[int, ...] | None) -> None:
    shape = actions.shape[1:]
    if action_shape is not None and shape != action_shape:
        rule = f"[T, {action_shape[0]}]" if action_shape else "[T]"
        raise invalid_episode(number, f"actions are {list(actions.shape)}, must be {rule}")
    kind = np.integer if shape == () else np.floating
    if len(shape) > 1 or not np.issubdtype(actions.dtype, kind):
        raise invalid_episode(
            number,
            f"actions are {list(actions.shape)} {actions.dtype}, must be [T, A] floats or [T] integers",
        )


def invalid_episode(number: int, problem: str) -> ConfigError:
    """Return the error of episode `number`."""
    return ConfigError("data.id", f"episode {number}: {problem}")
