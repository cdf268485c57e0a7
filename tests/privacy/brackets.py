"""Lower and upper bounds of the epsilon of sampled Gaussians, from the output densities alone.

Independent of dp-accounting, to check the accountant (`scripts/check_epsilon.py`). One release is a pair of
mixtures of unit Gaussians; its loss is discretised to multiples of h and composed by FFT.

Lower bound: outputs are grouped into intervals whose log ratio is exactly c + i h for an integer i. Grouping is
post-processing, so the composition of the groups is no less private than that of the outputs. Upper bound: the
mass of a cell (i h, (i + 1) h] of the loss goes to its two ends such that its mass is kept under both
distributions, which dominates it (Doroshenko et al. 2022). Both are second order in h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import fft, stats

from privrl_bench.kernels.jit import exact_jit, exact_part

FAR = 9.0  # deviations; the mass beyond is 1e-19
TAIL = 1e-15  # mass of a composition that may be omitted
LOOSE = 1e-6  # of a cell: tolerance of the grouping


@exact_part
def _mass(weights: np.ndarray, means: np.ndarray, a: float, b: float) -> float:
    """Mass of a mixture in (a, b], to relative accuracy in both tails."""
    total = 0.0
    for k in range(len(means)):
        if weights[k] > 0.0:
            x, y = (a - means[k]) / math.sqrt(2.0), (b - means[k]) / math.sqrt(2.0)
            part = math.erfc(x) - math.erfc(y) if x > 0.0 else math.erfc(-y) - math.erfc(-x)
            total += weights[k] * 0.5 * part
    return total


@exact_part
def _log_density(weights: np.ndarray, means: np.ndarray, x: float) -> float:
    """Log of a mixture's density over the standard normal's."""
    top = -math.inf
    for k in range(len(means)):
        if weights[k] > 0.0:
            top = max(top, means[k] * x - means[k] ** 2 / 2.0)
    total = 0.0
    for k in range(len(means)):
        if weights[k] > 0.0:
            total += weights[k] * math.exp(means[k] * x - means[k] ** 2 / 2.0 - top)
    return top + math.log(total)


@exact_part
def _loss(p: np.ndarray, q: np.ndarray, means: np.ndarray, x: float) -> float:
    return _log_density(p, means, x) - _log_density(q, means, x)


@exact_jit
def _outputs(p: np.ndarray, q: np.ndarray, means: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Outputs at which the increasing loss is `losses`; infinite where no output has that loss."""
    found = np.empty(len(losses))
    for i in range(len(losses)):
        low, high = means[0] - 2 * FAR, means[-1] + 2 * FAR
        if losses[i] <= _loss(p, q, means, low):
            found[i] = -np.inf
        elif losses[i] >= _loss(p, q, means, high):
            found[i] = np.inf
        else:
            for _ in range(60):
                middle = (low + high) / 2.0
                if _loss(p, q, means, middle) < losses[i]:
                    low = middle
                else:
                    high = middle
            found[i] = high
    return found


@exact_jit
def _groups(
    p: np.ndarray, q: np.ndarray, means: np.ndarray, h: float, start: float, base: float
) -> np.ndarray:
    """Edges, from `start` on, between which the log ratio of the masses is base + i h, i = 1, 2, ..."""
    edges, left, end = [start], start, means[-1] + FAR
    index = max(1.0, math.floor((_loss(p, q, means, start) - base) / h) + 1.0)
    while left < end:
        aim = math.exp(base + index * h)
        index += 1.0
        if _loss(p, q, means, left) >= math.log(aim):
            continue
        if _mass(p, means, left, end) < aim * _mass(q, means, left, end):
            break
        low, high = left, end
        for _ in range(60):
            middle = (low + high) / 2.0
            if _mass(p, means, left, middle) < aim * _mass(q, means, left, middle):
                low = middle
            else:
                high = middle
        left = high
        edges.append(left)
    return np.array(edges)


@dataclass
class Law:
    """Masses at the losses offset + (first + i) h, and at infinity."""

    offset: float
    first: int
    masses: np.ndarray
    infinite: float
    h: float

    def losses(self) -> np.ndarray:
        """[k] losses of the masses."""
        return self.offset + (self.first + np.arange(len(self.masses))) * self.h


@dataclass
class Pair:
    """Outputs of neighbours, mixtures of N(m, 1) with increasing likelihood ratio p / q.

    `both`: the profile is that of (p, q) above alpha = 1 and of (q, p) below (one of n).
    """

    p: np.ndarray
    q: np.ndarray
    means: np.ndarray
    both: bool = False

    def spread(self) -> float:
        """Deviation of the loss under p."""
        x = np.linspace(self.means[0] - FAR, self.means[-1] + FAR, 20_001)
        weights = (self.p * np.exp(-((x[:, None] - self.means) ** 2) / 2.0)).sum(1)
        losses = np.array([_loss(self.p, self.q, self.means, one) for one in x])
        weights /= weights.sum()
        return math.sqrt(float(weights @ (losses - weights @ losses) ** 2))

    def masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Masses of the intervals between edges, under p and q."""
        spans = list(pairwise(edges))
        return tuple(  # type: ignore[return-value]
            np.array([_mass(w, self.means, a, b) for a, b in spans]) for w in (self.p, self.q)
        )

    def range(self, h: float) -> np.ndarray:
        """Multiples of h that cover all losses except a tail."""
        ends = (self.means[0] - FAR, self.means[-1] + FAR)
        low, high = (_loss(self.p, self.q, self.means, x) for x in ends)
        return np.arange(0 if self.both else math.floor(low / h), math.ceil(high / h) + 1)

    def upper(self, h: float) -> list[Law]:
        """Dominating laws of the loss: of p against q, and of q against p."""
        grid = self.range(h)
        edges = _outputs(self.p, self.q, self.means, grid * h)
        first = edges[0] if self.both else -np.inf
        p, q = self.masses(np.concatenate([[first], edges, [np.inf]]))
        found = []
        for a, b, low in ((p, q, grid[0]), (q[::-1], p[::-1], -grid[-1])):
            ends = (low + np.arange(len(grid) - 1)) * h
            up = np.clip((a[1:-1] - b[1:-1] * np.exp(ends)) / -math.expm1(-h), 0.0, a[1:-1])
            masses = np.zeros(len(grid))
            masses[0] = a[0]
            masses[:-1] += a[1:-1] - up
            masses[1:] += up
            found.append(Law(0.0, int(low), masses, float(a[-1]), h))
        return [_symmetric(*found)] if self.both else found

    def lower(self, h: float) -> list[Law]:
        """Laws of the loss of grouped outputs: of p against q, and of q against p."""
        if self.both:
            (start,) = _outputs(self.p, self.q, self.means, np.array([h / 2]))
            base, edges = 0.0, []
        else:
            start, base, edges = *self._first(h), [-np.inf]
        groups = _groups(self.p, self.q, self.means, h, start, base)
        p, q = self.masses(np.concatenate([edges, groups, [np.inf]]))
        keep = (p > 0) & (q > 0)
        p, q = p[keep], q[keep]
        found = [_down(a, b, h, offset) for a, b, offset in ((p, q, base), (q, p, -base))]
        return [_symmetric(*found)] if self.both else found

    def _first(self, h: float) -> tuple[float, float]:
        """(end of the first group, at a loss less than h / 2 above its log ratio; that log ratio)."""
        low, high = self.means[0] - FAR, self.means[-1] + FAR

        def ratio(x: float) -> float:
            sides = (_mass(w, self.means, -np.inf, x) for w in (self.p, self.q))
            return math.log(next(sides)) - math.log(next(sides))

        if _loss(self.p, self.q, self.means, low) - ratio(low) < h / 2:
            for _ in range(60):
                middle = (low + high) / 2.0
                if _loss(self.p, self.q, self.means, middle) - ratio(middle) < h / 2:
                    low = middle
                else:
                    high = middle
        return low, ratio(low)

    def rounded(self, h: float, offset: float) -> list[Law]:
        """As `lower`, coarser: losses rounded down to offset + i h (-offset + i h the other way)."""
        edges = _outputs(self.p, self.q, self.means, self.range(h) * h)
        p, q = self.masses(np.concatenate([[-np.inf], edges, [np.inf]]))
        keep = (p > 0) & (q > 0)
        p, q = p[keep], q[keep]
        return [_down(a, b, h, o) for a, b, o in ((p, q, offset), (q, p, -offset))]


def _down(p: np.ndarray, q: np.ndarray, h: float, offset: float) -> Law:
    """Law of groups of masses p and q, whose losses are rounded down to offset + i h."""
    index = np.floor((np.log(p) - np.log(q) - offset) / h + LOOSE).astype(int)
    masses = np.bincount(index - index.min(), weights=p)
    return Law(offset - LOOSE * h, int(index.min()), masses, 0.0, h)


def _mixed(one: Law, other: Law, share: float) -> Law:
    """Law of `other` with probability `share`, otherwise of `one`; both have the same grid."""
    first = min(one.first, other.first)
    size = max(law.first + len(law.masses) for law in (one, other)) - first
    masses = np.zeros(size)
    for law, weight in ((one, 1.0 - share), (other, share)):
        start = law.first - first
        masses[start : start + len(law.masses)] += weight * law.masses
    infinite = (1.0 - share) * one.infinite + share * other.infinite
    return Law(one.offset, first, masses, infinite, one.h)


def _symmetric(above: Law, below: Law) -> Law:
    """Losses above 0 as of p against q, below 0 as of q against p, the rest at 0."""
    size = max(above.first + len(above.masses), 1 - below.first)
    masses = np.zeros(2 * size + 1)
    for law, keep in ((above, 1), (below, -1)):
        index = law.first + np.arange(len(law.masses))
        inside = index * keep > 0
        masses[size + index[inside]] = law.masses[inside]
    masses[size] = 1.0 - masses.sum() - above.infinite
    return Law(above.offset, -size, masses, above.infinite, above.h)


def poisson(z: float, q: float) -> Pair:
    """A user who joins with probability q, against a user who does not exist."""
    mu = np.array([0.0, 1.0 / z])
    return Pair(np.array([1.0 - q, q]), np.array([1.0, 0.0]), mu)


def cut_poisson(z: float, q: float, population: int, cap: int) -> tuple[Pair, float]:
    """A release whose cohort was cut at `cap`, and its probability (dp-accounting's note on truncation).

    Without the user, another user takes the place: two rows with a distance of two clips.
    """
    share = float(stats.binom.sf(cap - 1, population - 1, q))
    joins = 0.0
    if share > 0:
        joins = float(stats.binom.sf(cap, population, q)) * cap / population / share
    mu = np.array([-1.0, 0.0, 1.0]) * 2.0 / z
    return Pair(np.array([0.0, 1 - joins, joins]), np.array([joins, 1 - joins, 0.0]), mu), share


def uniform_single_user(z: float, n: int) -> Pair:
    """The pair that dominates one user drawn uniformly from n (`privacy/accounting/single_user.py`)."""
    mu = np.array([0.0, 2.0 / z])
    return Pair(np.array([1.0 - 1.0 / n, 1.0 / n]), np.array([1.0, 0.0]), mu, both=True)


# -- compositions


def composed(law: Law, count: int) -> Law:
    """The law of the sum of `count` independent losses."""
    low, high = _chernoff(law.masses, count)
    size = fft.next_fast_len(max(high - low + 1, len(law.masses)), real=True)
    sums = fft.irfft(fft.rfft(law.masses, size) ** count, size)
    infinite = -math.expm1(count * math.log1p(-law.infinite))
    masses = np.roll(sums, -(low % size))[: high - low + 1]
    return Law(law.offset * count, law.first * count + low, masses, infinite, law.h)


def _chernoff(masses: np.ndarray, count: int) -> tuple[int, int]:
    """Bounds of the sum of `count` indices, except for mass `TAIL` on either side."""
    places, logs = np.flatnonzero(masses), np.log(masses[masses > 0])
    low, high = 0.0, float((len(masses) - 1) * count)
    for order in np.geomspace(1e-3 / len(masses), 2.0, 40):
        for sign in (1, -1):
            terms = logs + sign * order * places
            top = terms.max()
            growth = count * (top + math.log(np.exp(terms - top).sum()))
            bound = (growth - math.log(TAIL)) / order
            low, high = (low, min(high, bound)) if sign > 0 else (max(low, -bound), high)
    return math.floor(low), math.ceil(high)


def epsilon_of(law: Law, delta: float) -> float:
    """Smallest epsilon >= 0 at which the law's profile is at most `delta`."""
    losses = law.losses()
    place = losses > 0
    losses, masses = losses[place], law.masses[place]

    def left(epsilon: float) -> float:
        start = int(np.searchsorted(losses, epsilon, side="right"))
        return law.infinite - float(masses[start:] @ np.expm1(epsilon - losses[start:])) - delta

    if left(0.0) <= 0:
        return 0.0
    low, high = 0.0, float(losses[-1])
    if left(high) > 0:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if left(middle) > 0 else (low, middle)
    return high


def bracket(
    pair: Pair,
    count: int,
    delta: float,
    cut: Pair | None = None,
    share: float = 0.0,
    fine: float = 0.02,
) -> tuple[float, float]:
    """Lower and upper bound of epsilon of `count` releases.

    Args:
        pair: outputs of one release.
        count: releases.
        delta: of the guarantee.
        cut: outputs of a release whose cohort was cut, which has probability `share`.
        share: that probability.
        fine: h in deviations of one release's loss.
    """
    h = min(fine * pair.spread(), 1e-3)
    slack = 1e-12 + 1e-13 * count  # of the FFT and the tails
    lower, upper = pair.lower(h), pair.upper(h)
    if cut is not None and share > 0:
        lower = [
            _mixed(a, b, share)
            for a, b in zip(lower, cut.rounded(h, lower[0].offset + LOOSE * h), strict=True)
        ]
        upper = [_mixed(a, b, share) for a, b in zip(upper, cut.upper(h), strict=True)]
    return (
        max(epsilon_of(composed(law, count), delta + slack) for law in lower),
        max(epsilon_of(composed(law, count), delta - slack) for law in upper),
    )
