"""Local differential privacy: what a user's own device does before anything leaves it.

Every observation of the environment is clipped to a public box and gets Gaussian noise, once, on the device; so
do rewards if `privacy.rewards=noised`. The policy acts on the noised observation, and the raw one stays
on the device. All later use of it (pooling, memories, running statistics, critics) is post-processing.

    shown = clip(observation, low, high) + N(0, (z scale)^2)    number by number, in the environment's units

Guarantee: two users who have the same rewards and ends for every sequence of actions, and any observations at
all, differ by at most the box in every shown observation. So k of them are, adaptively composed (each action
answers what was shown before), one Gaussian mechanism with

    mu = sqrt(k) sqrt(sum_j ((high_j - low_j) / (z scale_j))^2)        (Dong, Roth and Su 2022)

and m noised rewards, whose noise is z widths, add m / z^2 under the root. Rewards that are not noised, and when
an episode ends, are sent exactly.

Source: Doulazmi and Odonnat, "Differential Privacy in Reinforcement Learning" (state perturbation). They clip
nothing, so that their sensitivity has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError, PrivacyError, require

_LARGEST_MU = 1e100  # beyond: no privacy, and squares leave double precision


def perturbed(x: np.ndarray, low: np.ndarray, high: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Numbers clipped to [low, high] plus `noise`, all broadcast against x.

    NaN becomes the middle, so that a device that sends NaN shows the same as one in the middle.

    >>> perturbed(np.array([-9.0, np.nan, 0.5]), np.zeros(3), np.ones(3), np.full(3, 0.25)).tolist()
    [0.25, 0.75, 0.75]
    """
    return np.where(np.isnan(x), (low + high) / 2.0, np.clip(x, low, high)) + noise


@dataclass(frozen=True)
class Ranges:
    """The public box of what a user sends, and the unit of its noise; in the environment's units.

    Attributes:
        low, high, scale: [D] of observations.
        reward: (low, high) of rewards that get noise; None: rewards are public.
    """

    low: np.ndarray
    high: np.ndarray
    scale: np.ndarray
    reward: tuple[float, float] | None = None

    def mu(self, z: float, observations: int, rewards: int = 0) -> float:
        """Mu of so many observations (and rewards, if noised) together; infinite without noise.

        >>> Ranges(np.zeros(4), np.ones(4), np.ones(4)).mu(2.0, 9)
        3.0
        """
        if z <= 0:
            return math.inf
        with np.errstate(over="ignore"):
            each = float(np.square((self.high - self.low) / self.scale).sum())
        noised = rewards if self.reward is not None else 0
        found = math.sqrt(observations * each + noised) / z
        return found if found <= _LARGEST_MU else math.inf


def ranges_of(env: EnvConfig, dim: int, rewards: bool) -> Ranges:
    """The public ranges that `env` gives for observations of `dim` numbers, and for rewards if they get noise.

    Raises ConfigError: there are none, or they are of another length.
    """
    found: dict[str, np.ndarray] = {}
    for key in ("obs_low", "obs_high", "obs_noise_scale"):
        numbers = getattr(env, key)
        if numbers is None:
            if key == "obs_noise_scale":
                continue
            raise ConfigError(
                f"env.{key}",
                f"privacy=local needs the public range of each of the {dim} observation numbers of "
                f"{env.label}; give env.obs_low and env.obs_high",
            )
        require(f"env.{key}", len(numbers) == dim, f"{dim} numbers", f"{len(numbers)}")
        found[key] = np.asarray(numbers, dtype=np.float64)
    low, high = found["obs_low"], found["obs_high"]
    reward = None
    if rewards:
        for key in ("reward_low", "reward_high"):
            if getattr(env, key) is None:
                raise ConfigError(
                    f"env.{key}",
                    "privacy.rewards=noised needs a public range: env.reward_low and env.reward_high",
                )
        reward = (float(env.reward_low or 0.0), float(env.reward_high or 0.0))
    return Ranges(low, high, found.get("obs_noise_scale", high - low), reward)


def most_shown(user: str, steps: int, max_episode_steps: int) -> tuple[int, int]:
    """The largest number of observations and rewards of one unit that a round can show.

    Args:
        user: `env.user`.
        steps: T, steps of one user.
        max_episode_steps: public bound on the steps of an episode.

    An episode of n steps has n + 1 observations. T steps from a reset have T + 1 and one more for every restart
    but that after the last step, at most T - 1. Of an episode that runs through segments, a round shows those
    of its steps there and where it began; the state it is carried over in was shown in the round before.

    >>> most_shown("episode", 500, 500), most_shown("fresh", 64, 500), most_shown("segment", 128, 500)
    ((501, 500), (128, 64), (129, 128))
    """
    if user == "fresh":
        return 2 * steps, steps
    mine = min(steps, max_episode_steps)
    return mine + 1, mine


class DeviceNoise:
    """The devices of R replicas of U users. The gate draws a round's noise, `users/collectors/live.py` adds it.

    Args:
        ranges: public box and unit of the noise.
        z: noise multiplier of each replica: noise std / scale.
        users, steps: U, T.
        unit: `env.user`.
        max_episode_steps: public bound on the steps of an episode.

    Attributes:
        observations, rewards: the most of one unit that a round shows (`most_shown`).
    """

    def __init__(
        self,
        ranges: Ranges,
        z: Sequence[float],
        users: int,
        steps: int,
        unit: str,
        max_episode_steps: int,
    ):
        self.ranges = ranges
        self.observations, self.rewards = most_shown(unit, steps, max_episode_steps)
        if ranges.reward is None:
            self.rewards = 0
        self._z = tuple(z)
        dim, resets = len(ranges.low), 1 if unit == "episode" else steps + 1
        # One number for every observation there can be: at resets before step t, after step t.
        self._shapes: list[tuple[int, ...]] = [(resets, users, dim), (steps, users, dim)]
        if ranges.reward is not None:
            self._shapes.append((steps, users))
        # Shown values are multiples of a public power of two near a thousandth of the noise: the low bits of a
        # sum would show what was added (`contribution.on_grid`).
        with np.errstate(divide="ignore"):
            units = [ranges.scale, np.diff(ranges.reward or (0.0, 1.0))]
            stds = [np.asarray(self._z)[:, None] * unit for unit in units]
            self._grids = [np.exp2(np.floor(np.log2(std / 1024.0))) for std in stds]
        self._noise: list[np.ndarray] | None = None
        self._there = np.zeros((len(self._z), 1), dtype=bool)

    @property
    def sizes(self) -> list[int]:
        """How many standard normal numbers a round of one replica takes: resets, steps, rewards."""
        return [math.prod(shape) for shape in self._shapes]

    def mu(self, r: int) -> float:
        """Mu of all that one round shows of one unit of replica r; infinite without noise."""
        return self.ranges.mu(self._z[r], self.observations, self.rewards)

    def begin(self, drawn: list[list[Tensor] | None]) -> None:
        """Take the noise of a round, of each replica as `sizes`; None: it shows nothing any more."""
        noise = [np.zeros((shape[0], len(drawn), *shape[1:])) for shape in self._shapes]
        units = [self.ranges.scale, self.ranges.scale, np.diff(self.ranges.reward or (0.0, 1.0))]
        for r, own in enumerate(drawn):
            self._there[r] = own is not None
            for place, (into, shape) in enumerate(zip(noise, self._shapes, strict=True)):
                if own is not None and self._z[r] > 0:
                    into[:, r] = own[place].numpy().reshape(shape) * (units[place] * self._z[r])
        self._noise = noise

    def _of_round(self) -> list[np.ndarray]:
        """The round's noise. Raises PrivacyError: it was not drawn."""
        if self._noise is None:
            raise PrivacyError("no noise was drawn for this round; nothing may leave a device")
        return self._noise

    def _observation(self, raw: np.ndarray, noise: np.ndarray) -> np.ndarray:
        there = np.where(self._there[..., None], raw, np.nan)  # else the middle of the box
        shown = perturbed(there, self.ranges.low, self.ranges.high, noise)
        return _rounded(shown, self._grids[0][:, None])

    def at_reset(self, raw: np.ndarray, t: int) -> np.ndarray:
        """What is shown of the first observations [R, U, D] of episodes that begin before step t."""
        return self._observation(raw, self._of_round()[0][t])

    def after_step(self, raw: np.ndarray, t: int) -> np.ndarray:
        """What is shown of the observations [R, U, D] after step t."""
        return self._observation(raw, self._of_round()[1][t])

    def reward(self, rewards: np.ndarray, t: int | slice) -> np.ndarray:
        """What is shown of the rewards [R, U] of step t, or [T, R, U] of a slice of steps."""
        if self.ranges.reward is None:
            return rewards
        low, high = (np.asarray(x) for x in self.ranges.reward)
        there = np.where(self._there, rewards, np.nan)
        return _rounded(perturbed(there, low, high, self._of_round()[2][t]), self._grids[1])


def _rounded(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """To multiples of `grid`, broadcast against x; 0 leaves x as it is."""
    noisy = grid > 0
    step = np.where(noisy, grid, 1.0)
    return np.where(noisy, np.round(x / step) * step, x)
