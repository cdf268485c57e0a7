"""Epsilon of a search: K runs of a private mechanism, K random and secret, of which only the best is released.

One run Q is (epsilon_1, delta_Q(epsilon_1))-DP for every epsilon_1; its output includes the score. With the
generating function f(x) = E[x^K], the best of K runs has the density

    A(y) = Q(y) f'(q),   q = Q(outputs that are not better than y)

(ties are broken by a random number of each run). For neighbouring data, 1 - q' <= e^h (1 - q) + d for every
h >= 0 and d = delta_Q(h), and f'(q) <= f'(1) = E[K] = m:

- Poisson: f'(q) / f'(q') = exp(m (q - q')) <= exp(m d + m c (1 - q)) with c = e^h - 1. The supremum of
  e^-t [Q - exp(e - m d - c t) Q']_+ over t = m (1 - q) >= 0 is a mixture of hockey sticks, and
      delta_A(e) <= m E[delta_Q(e - m d + h - c T)],   T exponential with mean 1.
  For h = 0: delta_A(e) <= m delta_Q(e - m d).
- Truncated negative binomial (shape eta, gamma): f'(q) / f'(q') <= (e^h + d (1 - gamma) / gamma)^(eta + 1), and
      delta_A(e_1 + (eta + 1) ln(e^h + d (1 - gamma) / gamma)) <= m delta_Q(e_1).
  Shape 1 is the geometric, shape 0 the logarithmic distribution.

Sources: the distributions and the density: Papernot and Steinke 2022, after Liu and Talwar 2019.
The second bound has the form of Koskela, Redberg and Wang 2024; the first is proven here.
Tests compare both with the exact epsilon of the best of K Gaussian outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.account import secret_uniforms

_PER_DECADE = 16  # points of a profile
_WIDTH = 0.05  # of a step of T
_SHIFTS = tuple(0.02 * i for i in range(100))  # values of h that are tried
_LEAST_GAMMA = 1e-12
_MOST_POISSON = 500.0  # exp(-mean), from which a number is drawn, must not be 0
_MOST_EPSILON = 700.0  # of a point of a profile: exp must be finite
_COUNT, _TIES, _SETTINGS, _SEEDS = range(4)  # draws of a search


@dataclass(frozen=True)
class RunCount:
    """The distribution of the number of runs K of a search.

    Attributes:
        mean: E[K], at least 1.
        shape: infinite: Poisson, which may be 0; else of the truncated negative binomial distribution, K >= 1.
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        least = self.mean >= 1.0 if self.poisson else self.mean > 1.0
        most = self.mean <= _MOST_POISSON if self.poisson else self.mean < math.inf
        if not (least and most and self.shape >= 0.0):
            raise PrivacyError(f"no distribution of the number of runs: {self}")
        if not self.poisson:
            try:
                _ = self.gamma
            except ValueError:
                raise PrivacyError(f"no parameter of the number of runs: {self}") from None

    @property
    def poisson(self) -> bool:
        """Whether K has a Poisson distribution."""
        return math.isinf(self.shape)

    @cached_property
    def gamma(self) -> float:
        """Parameter of the truncated negative binomial distribution, in (0, 1).

        Source: Papernot and Steinke 2022, definition 1.

        >>> round(RunCount(8.0, 1.0).gamma, 6)
        0.125
        """
        from scipy.optimize import brentq  # a fifth of a second to import

        def excess(log_gamma: float) -> float:
            gamma = math.exp(log_gamma)
            if self.shape == 0.0:
                mean = (1.0 / gamma - 1.0) / -log_gamma
            else:
                mean = self.shape * (1.0 - gamma) / (gamma * -math.expm1(self.shape * log_gamma))
            return math.log(mean / self.mean)

        return math.exp(brentq(excess, math.log(_LEAST_GAMMA), math.log1p(-1e-9), xtol=1e-13))

    def draw(self, uniform: float) -> int:
        """The number of runs for a uniform random number in [0, 1), by inversion.

        >>> [RunCount(8.0, math.inf).draw(u) for u in (0.0001, 0.5, 0.999)], RunCount(8.0, 1.0).draw(0.0)
        ([0, 8, 18], 1)
        """
        count, mass = (0, math.exp(-self.mean)) if self.poisson else (1, self._first)
        total = mass
        while uniform >= total and (mass > 1e-18 or count < self.mean):
            count += 1
            if self.poisson:
                mass *= self.mean / count
            else:
                mass *= (1.0 - self.gamma) * (count - 1.0 + self.shape) / count
            total += mass
        return count

    @property
    def _first(self) -> float:
        """P(K = 1) of the truncated negative binomial distribution."""
        if self.shape == 0.0:
            return (1.0 - self.gamma) / -math.log(self.gamma)
        return self.shape * (1.0 - self.gamma) / math.expm1(-self.shape * math.log(self.gamma))


@dataclass(frozen=True)
class SearchDraw:
    """What a search draws before its first run; as secret as the noise.

    Attributes:
        count: K, the number of runs.
        ties: [K] numbers that order runs of equal scores.
        settings: [K, D] uniform numbers in (0, 1].
        seeds: [K] seeds of the runs.
    """

    count: int
    ties: list[float]
    settings: np.ndarray
    seeds: list[int]


def draw_search(
    kind: str, seed: int, identity: int, runs: RunCount | int, dimensions: int
) -> SearchDraw:
    """Draw a search, from the source of the noise.

    Args:
        kind: `privacy.noise`.
        seed: of the search.
        identity: a number that stands for everything that was asked for; see `SeededNoise`.
        runs: the distribution of the number of runs, or the number.
        dimensions: D, how many settings are drawn.
    """
    uniform = secret_uniforms(kind, seed, identity)
    count = runs if isinstance(runs, int) else runs.draw(1.0 - float(uniform(1, _COUNT)[0]))
    return SearchDraw(
        count,
        uniform(count, _TIES).tolist(),
        uniform(count * dimensions, _SETTINGS).reshape(count, dimensions),
        [int(x) for x in np.ceil(uniform(count, _SEEDS) * 2**32) - 1],
    )


class Profile:
    """delta_Q: an upper bound of delta at every epsilon, from epsilon at some deltas.

    delta is convex in e^epsilon, so a chord between two valid points is valid.

    Args:
        cost: delta -> epsilon of one run, the larger of both orders of the neighbours.
        least: the smallest delta that matters.
    """

    def __init__(self, cost: Callable[[float], float], least: float):
        count = max(2, math.ceil(_PER_DECADE * -math.log10(least)))
        deltas = np.append(np.geomspace(least, 0.999, count), 1.0)
        epsilons = np.array([cost(float(delta)) for delta in deltas[:-1]] + [0.0])
        epsilons = np.minimum.accumulate(epsilons)
        zero = int(np.argmax(epsilons <= 0.0))  # the first delta that costs nothing
        if zero:
            deltas[zero] = _least_free(cost, float(deltas[zero - 1]), float(deltas[zero]))
        # Without points at large epsilons delta there is that of the last one that is left: more, never less.
        keep = (np.arange(len(deltas)) <= zero) & (epsilons < _MOST_EPSILON)
        self.epsilons, self.deltas = epsilons[keep][::-1].copy(), deltas[keep][::-1].copy()

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Bounds of delta at each epsilon, any shape; negative epsilons by exchanging the neighbours."""
        size = np.minimum(np.abs(epsilon), _MOST_EPSILON)
        positive = np.interp(np.exp(size), np.exp(self.epsilons), self.deltas)
        positive = np.where(size < self.epsilons[-1], positive, self.deltas[-1])
        return np.where(epsilon >= 0.0, positive, 1.0 - np.exp(-size) * (1.0 - positive))


def _least_free(cost: Callable[[float], float], costly: float, free: float) -> float:
    """A delta that costs nothing, close to the least one."""
    for _ in range(30):
        middle = (costly + free) / 2.0
        costly, free = (middle, free) if cost(middle) > 0.0 else (costly, middle)
    return free


def profile_epsilon(cost: Callable[[float], float], runs: RunCount, delta: float) -> float:
    """Epsilon of a search by the profile of one run; see the module.

    Args:
        cost: delta -> epsilon of one run.
        runs: the number of runs.
        delta: of the search.

    Returns:
        epsilon; infinite if one run has no guarantee.

    >>> from privrl_bench.privacy.accounting.exact_gaussian import epsilon_at
    >>> round(profile_epsilon(lambda d: epsilon_at(2.0, d), RunCount(8.0, 0.0), 1e-5), 2)
    3.21
    """
    if not cost(delta) < math.inf:
        return math.inf
    profile = Profile(cost, 1e-4 * delta / runs.mean)
    if runs.poisson:
        return _poisson_epsilon(profile, runs.mean, delta)
    first = cost(delta / runs.mean)
    tail = profile.deltas * (1.0 - runs.gamma) / runs.gamma
    growth = np.log(np.exp(profile.epsilons) + tail)
    return first + (runs.shape + 1.0) * float(growth.min())


def _poisson_epsilon(profile: Profile, mean: float, delta: float) -> float:
    """The first bound of the module, for the best h."""
    shifts = np.array([h for h in _SHIFTS if h <= max(profile.epsilons[0], profile.epsilons[-1])])
    steps = np.arange(0.0, math.log(1e6 * mean / delta), _WIDTH)
    mass = np.exp(-steps) * -np.expm1(-_WIDTH)  # of T in [t, t + width)
    rest = math.exp(-float(steps[-1]) - _WIDTH)  # T beyond: delta is at most 1
    offset = mean * profile.delta(shifts) - shifts  # [H]
    growth = np.expm1(shifts)[:, None] * (steps + _WIDTH)  # [H, T], at the right end of each step

    def worst(epsilon: np.ndarray) -> np.ndarray:
        at = (epsilon - offset)[:, None] - growth
        return mean * (profile.delta(at) @ mass + rest)

    low, high = np.zeros_like(shifts), np.full_like(shifts, 1.0)
    while (late := (worst(high) > delta) & (high < 1e4)).any():
        high = np.where(late, 2.0 * high, high)
    for _ in range(60):
        middle = (low + high) / 2.0
        enough = worst(middle) <= delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    valid = worst(high) <= delta
    return float(high[valid].min()) if valid.any() else math.inf
