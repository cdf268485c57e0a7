"""Compare the epsilon of the package with independent computations; write docs/epsilon_checks.md.

    python scripts/check_epsilon.py [--check]

Compositions of Gaussians: the formula of Balle and Wang (2018) in 50 digits. Sampled cohorts: a lower and an
upper bound from the two output densities alone, discretised and composed here by FFT, without dp-accounting.
Poisson sampling also: Opacus' PRV accountant, if opacus is installed (it is no dependency of the package).
--check writes nothing and exits with 1 if an epsilon is below its lower bound.

Lower bound: outputs are grouped into intervals whose log ratio is exactly c + i h for an integer i. Grouping is
post-processing, so the composition of the groups is no less private than that of the outputs. Upper bound: the
mass of a cell (i h, (i + 1) h] of the loss goes to its two ends such that its mass is kept under both
distributions, which dominates it (Doroshenko et al. 2022). Both are second order in h.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mpmath
import numba
import numpy as np
from scipy import fft, stats

PAGE = Path(__file__).resolve().parent.parent / "docs" / "epsilon_checks.md"
FAR = 9.0  # deviations; beyond: 1e-19
TAIL = 1e-15  # of a composition, that may be left out
LOOSE = 1e-6  # of a cell: tolerance of the grouping


def balle_wang(mu: float, delta: float) -> float:
    """Exact epsilon of two Gaussians `mu` deviations apart, in 50 digits.

    >>> round(balle_wang(1.0, 1e-5), 6)
    4.377178
    """
    with mpmath.workdps(50):
        m, d = mpmath.mpf(mu), mpmath.mpf(delta)

        def left(epsilon: mpmath.mpf) -> mpmath.mpf:
            first = mpmath.ncdf(m / 2 - epsilon / m)
            return first - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m) - d

        if left(mpmath.mpf(0)) <= 0:
            return 0.0
        low, high = mpmath.mpf(0), m * (m / 2 + 2 * mpmath.sqrt(-2 * mpmath.log(d)))
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if left(middle) > 0 else (low, middle)
        return float(high)


# -- one release: two mixtures of unit Gaussians ------------------------------------------------


@numba.njit(cache=False)
def _mass(weights: np.ndarray, means: np.ndarray, a: float, b: float) -> float:
    """Mass of a mixture in (a, b], to relative accuracy in both tails."""
    total = 0.0
    for k in range(len(means)):
        if weights[k] > 0.0:
            x, y = (a - means[k]) / math.sqrt(2.0), (b - means[k]) / math.sqrt(2.0)
            part = math.erfc(x) - math.erfc(y) if x > 0.0 else math.erfc(-y) - math.erfc(-x)
            total += weights[k] * 0.5 * part
    return total


@numba.njit(cache=False)
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


@numba.njit(cache=False)
def _loss(p: np.ndarray, q: np.ndarray, means: np.ndarray, x: float) -> float:
    return _log_density(p, means, x) - _log_density(q, means, x)


@numba.njit(cache=False)
def _outputs(p: np.ndarray, q: np.ndarray, means: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Outputs at which the loss, which increases, is `losses`; infinite where it never is."""
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


@numba.njit(cache=False)
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
        """Of the intervals between edges, under p and q."""
        spans = list(zip(edges[:-1], edges[1:], strict=True))
        return tuple(  # type: ignore[return-value]
            np.array([_mass(w, self.means, a, b) for a, b in spans]) for w in (self.p, self.q)
        )

    def range(self, h: float) -> np.ndarray:
        """Multiples of h that hold all losses but a tail."""
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
            masses[:-1], masses[1:] = a[1:-1] - up, masses[1:] + up
            masses[0] += a[0]
            found.append(Law(0.0, int(low), masses, float(a[-1]), h))
        return [_symmetric(*found)] if self.both else found

    def lower(self, h: float) -> list[Law]:
        """Laws of the loss of grouped outputs: of p against q, and of q against p."""
        if self.both:
            (start,) = _outputs(self.p, self.q, self.means, np.array([h / 2]))
            base, edges = 0.0, []
        else:
            start, base, edges = *self._first(h), [-np.inf]
        edges = [*edges, *_groups(self.p, self.q, self.means, h, start, base), np.inf]
        p, q = self.masses(np.array(edges))
        keep = (p > 0) & (q > 0)
        p, q = p[keep], q[keep]
        found = []
        for a, b, offset in ((p, q, base), (q, p, -base)):
            index = np.floor((np.log(a) - np.log(b) - offset) / h + LOOSE).astype(int)
            masses = np.bincount(index - index.min(), weights=a)
            found.append(Law(offset - LOOSE * h, int(index.min()), masses, 0.0, h))
        return [_symmetric(*found)] if self.both else found

    def _first(self, h: float) -> tuple[float, float]:
        """Where the first group ends, less than h / 2 above its log ratio, and that log ratio."""
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
