"""Split of users into public and private, a function of their number only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.trajectories import Trajectories, blocks

_ORDER = 20_240_607  # an arbitrary constant; changing it changes the split
_BLOCK = 1 << 14  # steps in memory at once as float64
_SMALLEST = 1e-6  # standard deviation relative to the root mean square


@dataclass(frozen=True, eq=False)
class Split:
    """A split in which all episodes of a user are in the same part.

    Attributes:
        public: int64 episode numbers of the public users, ascending.
        public_users: Number of public users.
        private_starts: [private users + 1] offsets into `private_episodes`.
        private_episodes: Episode numbers of private user u are
            `private_episodes[private_starts[u] : private_starts[u + 1]]`, ascending.
    """

    public: np.ndarray
    public_users: int
    private_starts: np.ndarray
    private_episodes: np.ndarray

    @property
    def users(self) -> int:
        """Number of private users."""
        return len(self.private_starts) - 1


def split_users(trajectories: Trajectories, public_share: float, limit: int | None = None) -> Split:
    """Split the first `limit` users of a fixed random order.

    Args:
        trajectories: The dataset.
        public_share: Share of public users. Their number is the share, read as a decimal number, times
            the number of users, rounded up.
        limit: Number of users; None: all.

    Raises:
        ConfigError: On data.public: the share is outside (0, 1) or a part is empty. On data.users: the
            dataset has fewer users.
    """
    there = trajectories.user_count
    if limit is not None and not 1 <= limit <= there:
        raise ConfigError(
            "data.users", f"must be from 1 to {there}, the number of users, got {limit}"
        )
    if not 0 < public_share < 1:
        raise ConfigError("data.public", f"must be above 0 and below 1, got {public_share}")
    chosen = _order(there)[:limit]
    # 0.07 * 100 is more than 7 in floating point.
    public = math.ceil(Fraction(repr(float(public_share))) * len(chosen))
    if len(chosen) < 2:
        key = "data.id" if there < 2 else "data.users"
        raise ConfigError(key, "a split into public and private needs at least two users, got 1")
    if public == len(chosen):
        raise ConfigError(
            "data.public", f"{public_share} of {public} users leaves no private user; lower it"
        )
    by_user = np.argsort(trajectories.users, kind="stable")
    bounds = np.searchsorted(trajectories.users[by_user], np.arange(there + 1))
    sizes = np.diff(bounds)[chosen]
    episodes = np.concatenate([by_user[bounds[user] : bounds[user + 1]] for user in chosen])
    cut = int(sizes[:public].sum())
    return Split(
        public=np.sort(episodes[:cut]),
        public_users=public,
        private_starts=np.concatenate([[0], np.cumsum(sizes[public:])]),
        private_episodes=episodes[cut:],
    )


def _order(users: int) -> np.ndarray:
    """Permutation of the user numbers.

    NumPy guarantees the raw numbers of PCG64 across versions, but not its permutations.
    """
    return np.argsort(np.random.PCG64(_ORDER).random_raw(users), kind="stable")


def moments(
    trajectories: Trajectories, episodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Compute mean and standard deviation of observations and rewards in float64.

    A standard deviation is at least 1e-6 of the root mean square, and 1 if all values are 0.

    Args:
        trajectories: The dataset.
        episodes: Episode numbers; all T + 1 observations of an episode count.

    Returns:
        Mean [D] and standard deviation [D] of the observations, mean and standard deviation of the rewards.

    Raises:
        ValueError: There are no episodes.
    """
    if len(episodes) == 0:
        raise ValueError("no episodes")
    obs_mean, obs_std = _mean_std(
        _rows(trajectories, np.sort(episodes), trajectories.observations, 1)
    )
    reward_mean, reward_std = _mean_std(
        _rows(trajectories, np.sort(episodes), trajectories.rewards, 0)
    )
    return obs_mean, obs_std, float(reward_mean), float(reward_std)


def _rows(
    trajectories: Trajectories, episodes: np.ndarray, array: np.ndarray, extra: int
) -> Iterator[np.ndarray]:
    """Yield blocks of the episodes' rows of `array`, which has `extra` more rows than steps per episode."""
    starts = trajectories.starts
    for block in blocks(trajectories.lengths[episodes], _BLOCK):
        parts = [
            array[starts[k] + extra * k : starts[k + 1] + extra * (k + 1)] for k in episodes[block]
        ]
        yield np.concatenate(parts, dtype=np.float64)


def _mean_std(parts: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and floored standard deviation over the rows of all parts (pairwise update of Chan et al.)."""
    count = 0
    mean: np.ndarray = np.zeros(())
    squares: np.ndarray = np.zeros(())
    for rows in parts:
        here, total = rows.mean(axis=0), count + len(rows)
        gap = here - mean
        squares = squares + ((rows - here) ** 2).sum(axis=0) + gap**2 * (count * len(rows) / total)
        mean = mean + gap * (len(rows) / total)
        count = total
    std = np.sqrt(squares / count)
    size = np.sqrt(mean**2 + std**2)
    return mean, np.maximum(std, np.where(size > 0, _SMALLEST * size, 1.0))
