"""Recorded episodes: their validation, their files, and the split of their users into public and private.

Axes: K episodes, T steps of one episode, N steps of all, D observation size, A action size.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.user_keys import Label, Labels

_ORDER = 20_240_607  # an arbitrary constant; changing it changes the split
_BLOCK = 1 << 14  # steps in memory at once as float64
_SMALLEST = 1e-6  # standard deviation relative to the root mean square


class Episode(NamedTuple):
    """One recorded episode.

    Attributes:
        observations: [T + 1, D] float32.
        actions: [T, A] float32, or [T] int64 for discrete actions.
        rewards: [T] float32.
        terminated: [T] bool, true at the last step at most.
        truncated: [T] bool, true at the last step at most.
        user: Its user, for a dataset that is written; None: a user of its own, or named by `labels`.
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
) -> Episode:
    """Return an episode with copies of the arrays, truncated if it did not terminate; see `Episode`."""
    last = np.arange(len(rewards)) == len(rewards) - 1
    return Episode(
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards),
        terminated=last & terminated,
        truncated=last & (not terminated),
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
        card: Further information about the data.
        behavior_probs: [N] float32, probability of each action under the behaviour policy; None: not known.
        labels: Of the episodes' metadata, each a list of length K.
        user_key: Key of the metadata that names the users; None: each episode is a user.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    starts: np.ndarray
    users: np.ndarray
    card: dict[str, Any] = field(default_factory=dict)
    behavior_probs: np.ndarray | None = None
    labels: Labels = field(default_factory=dict)
    user_key: str | None = None

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

    def who(self) -> str:
        """Digest of the users in their order: whose each episode is, and how long it is."""
        found = hashlib.sha256()
        for column in (self.users, self.lengths):
            found.update(np.ascontiguousarray(column, np.int64).tobytes())
        names = self.labels.get(self.user_key or "", [])
        found.update(repr([self.user_key, *map(str, names)]).encode())
        return found.hexdigest()[:32]

    def episode(self, k: int) -> Episode:
        """Return a copy of episode `k` without its user, truncated if it did not terminate.

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
        )

    def returns(self) -> np.ndarray:
        """Return the undiscounted returns, [K] float64."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts[:-1])

    @classmethod
    def of(
        cls,
        episodes: Iterable[Episode],
        obs_dim: int | None = None,
        action_shape: tuple[int, ...] | None = None,
        choices: tuple[int, int] | None = None,
        card: dict[str, Any] | None = None,
    ) -> Trajectories:
        """Check and join episodes, each of a user of its own; see `users_of` for those that metadata name.

        Args:
            episodes: At least one.
            obs_dim: See `check_episode`; None: that of the first episode.
            action_shape: See `check_episode`; None: that of the first episode.
            choices: See `check_episode`.
            card: Further information about the data.

        Raises:
            ConfigError: On data.id: an episode is invalid (see `check_episode`), or there are none.
        """
        parts: list[Episode] = []
        for number, episode in enumerate(episodes):
            check_episode(episode, number, obs_dim, action_shape, choices)
            if not parts:
                obs_dim, action_shape = episode.observations.shape[1], episode.actions.shape[1:]
            elif (episode.behavior_probs is None) != (parts[0].behavior_probs is None):
                has = "has no" if episode.behavior_probs is None else "has"
                raise invalid_episode(
                    number, f"{has} behavior_probs, unlike earlier ones: all or none"
                )
            parts.append(episode)
        if not parts:
            raise ConfigError("data.id", "there are no episodes")
        labels = [one.labels or {} for one in parts]
        keys = dict.fromkeys(key for one in labels for key in one)
        known = [one.behavior_probs for one in parts if one.behavior_probs is not None]
        return cls(
            np.concatenate([one.observations for one in parts]).astype(np.float32, copy=False),
            np.concatenate([one.actions for one in parts]).astype(
                np.float32 if action_shape else np.int64, copy=False
            ),
            np.concatenate([one.rewards for one in parts]).astype(np.float32, copy=False),
            np.concatenate([one.terminated for one in parts]).astype(bool, copy=False),
            np.cumsum([0, *(len(one.rewards) for one in parts)]),
            np.arange(len(parts)),
            behavior_probs=np.concatenate(known) if known else None,
            labels={key: [one.get(key) for one in labels] for key in keys},
            card=card or {},
        )

    def save(self, folder: Path) -> None:
        """Write the arrays to a new folder, atomically. Raises FileExistsError."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            inside = Path(temporary) / "flat"
            inside.mkdir()
            about = {}
            for name, value in vars(self).items():
                if isinstance(value, np.ndarray):
                    np.save(inside / f"{name}.npy", value)
                else:
                    about[name] = value
            (inside / "about.json").write_text(json.dumps(about))
            try:
                os.rename(inside, folder)
            except OSError:
                if folder.exists():  # another process was first
                    raise FileExistsError(folder) from None
                raise

    @classmethod
    def load(cls, folder: Path) -> Trajectories:
        """Open the files of `save`; the large arrays are memory-mapped, read-only."""
        arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
        arrays |= {name: np.array(arrays[name]) for name in ("starts", "users")}  # small
        return cls(**arrays, **json.loads((folder / "about.json").read_text()))


def check_episode(
    episode: Episode,
    number: int,
    obs_dim: int | None = None,
    action_shape: tuple[int, ...] | None = None,
    choices: tuple[int, int] | None = None,
) -> None:
    """Check shapes and values of an episode.

    Args:
        episode: The episode.
        number: Its number, for messages.
        obs_dim: D; None: any.
        action_shape: (A,), or () for discrete actions; None: any.
        choices: The least and the largest discrete action; None: any.

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
    if choices and not choices[0] <= episode.actions.min() <= episode.actions.max() <= choices[1]:
        raise invalid_episode(number, "actions outside {} to {}".format(*choices))
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


# --- the split


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset and its split, in which all episodes of a user are in the same part.

    Attributes:
        name: its ID.
        trajectories: all episodes.
        public: int64 episode numbers of the public users, ascending.
        public_users: Number of public users.
        most: The largest number of episodes of one private user, of all parts.
        private_starts: [private users + 1] offsets into `private_episodes`.
        private_episodes: Episode numbers of private user u are
            `private_episodes[private_starts[u] : private_starts[u + 1]]`, ascending.
    """

    name: str
    trajectories: Trajectories
    public: np.ndarray
    public_users: int
    private_starts: np.ndarray
    private_episodes: np.ndarray
    most: int

    @property
    def users(self) -> int:
        """Number of private users."""
        return len(self.private_starts) - 1

    def describe(self) -> str:
        """Who the users are, for the plan."""
        key = self.trajectories.user_key
        named = "each a user" if key is None else f"user key {key!r}"
        count = len(self.private_episodes)
        return f"{self.users} private users ({count} episodes, {named}), {self.public_users} public"

    def episodes_of(self, user: int) -> np.ndarray:
        """Episode numbers of a private user."""
        return self.private_episodes[self.private_starts[user] : self.private_starts[user + 1]]


def public_users(users: int, share: float) -> np.ndarray:
    """The public ones of so many users, [.] int64; a smaller share has some of them.

    Raises:
        ConfigError: On data.public: the share is outside (0, 1).
    """
    if not 0 < share < 1:
        raise ConfigError("data.public", f"must be above 0 and below 1, got {share}")
    # 0.07 * 100 is more than 7 in floating point.
    return fixed_order(users)[: math.ceil(Fraction(repr(float(share))) * users)]


def split_users(
    trajectories: Trajectories,
    public_share: float,
    limit: int | None = None,
    name: str = "",
    part: str | None = None,
) -> Dataset:
    """Split the first `limit` users of a fixed random order.

    Args:
        trajectories: The episodes.
        public_share: Share of public users. Their number is the share, read as a decimal number, times
            the number of users, rounded up.
        limit: Number of users; None: all.
        name: ID of the dataset.
        part: of the private users, as 2/3: those at positions p of the order with p % 3 == 1; None: all.

    Raises:
        ConfigError: On data.public: the share is outside (0, 1) or leaves nobody. On data.part: it has nobody.
            On data.users: the dataset has fewer users.
    """
    there = trajectories.user_count
    if limit is not None and not 1 <= limit <= there:
        raise ConfigError(
            "data.users", f"must be from 1 to {there}, the number of users, got {limit}"
        )
    chosen = fixed_order(there)[:limit]
    public = len(public_users(len(chosen), public_share))
    if len(chosen) < 2:
        key = "data.id" if there < 2 else "data.users"
        raise ConfigError(key, "a split into public and private needs at least two users, got 1")
    if public == len(chosen):
        raise ConfigError(
            "data.public", f"{public_share} of {public} users leaves no private user; lower it"
        )
    by_user = np.argsort(trajectories.users, kind="stable")
    bounds = np.searchsorted(trajectories.users[by_user], np.arange(there + 1))
    most = int(np.diff(bounds)[chosen[public:]].max())
    if part is not None:  # a position does not depend on the public share or the limit
        number, parts = map(int, part.split("/"))
        at = np.arange(len(chosen))
        chosen = chosen[(at < public) | (at % parts == number - 1)]
        if len(chosen) == public:
            raise ConfigError("data.part", f"no private user is in {part} of {there} users")
    sizes = np.diff(bounds)[chosen]
    episodes = np.concatenate([by_user[bounds[user] : bounds[user + 1]] for user in chosen])
    cut = int(sizes[:public].sum())
    return Dataset(
        name,
        trajectories,
        public=np.sort(episodes[:cut]),
        public_users=public,
        private_starts=np.concatenate([[0], np.cumsum(sizes[public:])]),
        private_episodes=episodes[cut:],
        most=most,
    )


def fixed_order(count: int) -> np.ndarray:
    """Permutation of the numbers below `count`, the same in every run.

    NumPy guarantees the raw numbers of PCG64 across versions, but not its permutations.
    """
    return np.argsort(np.random.PCG64(_ORDER).random_raw(count), kind="stable")


def moments(trajectories: Trajectories, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of observations in float64.

    A standard deviation is at least 1e-6 of the root mean square, and 1 if all values are 0.

    Args:
        trajectories: The dataset.
        episodes: Episode numbers, at least one; all T + 1 observations of an episode count.

    Returns:
        Mean [D] and standard deviation [D].
    """
    count, starts = 0, trajectories.starts
    mean: np.ndarray = np.zeros(())
    squares: np.ndarray = np.zeros(())
    numbers = np.sort(episodes)
    for block in _blocks(trajectories.lengths[numbers], _BLOCK):
        rows = np.concatenate(
            [
                trajectories.observations[starts[k] + k : starts[k + 1] + k + 1]
                for k in numbers[block]
            ],
            dtype=np.float64,
        )
        # The pairwise update of Chan et al.
        here, total = rows.mean(axis=0), count + len(rows)
        gap = here - mean
        squares = squares + ((rows - here) ** 2).sum(axis=0) + gap**2 * (count * len(rows) / total)
        mean = mean + gap * (len(rows) / total)
        count = total
    std = np.sqrt(squares / count)
    size = np.sqrt(mean**2 + std**2)
    return mean, np.maximum(std, np.where(size > 0, _SMALLEST * size, 1.0))


def _blocks(lengths: np.ndarray, most: int) -> Iterator[slice]:
    """Group consecutive episodes of `lengths` [n] into blocks of at most `most` steps, or of one episode.

    >>> list(_blocks(np.array([2, 2, 9, 1]), 4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(lengths)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(first, last)
        first = last
