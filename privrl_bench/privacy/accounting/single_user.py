"""One of n users, drawn uniformly in every round, under noise: the privacy loss when one user is replaced.

Two neighbouring sets of users differ in one user. With q = 1 / n that user is drawn, and the release is
Gaussian around their row; else around another's, for both sets the same mixture R:

    M = (1 - q) R + q P',    M' = (1 - q) R + q P''.

Advanced joint convexity (Balle, Barthe and Gaboardi 2018, theorem 2) gives for alpha >= 1, with
alpha = 1 + q (a - 1),

    H_alpha(M || M') = q H_a(P' || (1 - alpha / a) R + (alpha / a) P'')
                    <= q max(H_a(P' || R), H_a(P' || P''))              (convexity in the second argument)
                    <= q H_a(P || Q) = H_alpha((1 - q) Q + q P || Q),

where H_alpha(A || B) = sup over events of A - alpha B, and P and Q are Gaussians 2 clips apart: R is a mixture
of Gaussians no farther from P' than that. Replacing is symmetric, and H_alpha(A || B) = 1 - alpha +
alpha H_{1 / alpha}(B || A) for all A and B, so for 0 < alpha < 1 the same bound reads
H_alpha(Q || (1 - q) Q + q P). Together they are one function of alpha: 1 at 0, decreasing, at least
1 - alpha, convex on both sides and at 1 (its slope there is -((1 - q)(1 - p) + q p) on the left and -p on the
right, p = P(P < Q) <= 1/2). So it is the profile of one pair of distributions (Zhu, Dong and Wang 2022,
proposition 8), which dominates both orders of the neighbours whatever all other rows are; hence it
composes over adaptive rounds (their theorem 10). Connecting the profile's values by straight lines in alpha
(Doroshenko et al. 2022) only raises it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from privrl_bench.privacy.accounting.capped_poisson import composed_epsilon

_TAIL = 1e-14  # of a profile, beyond which what is left counts as a loss without bound
_MOST_CELLS = 500_000  # on either side of 0


def profile(epsilons: np.ndarray, z: float, n: int) -> np.ndarray:
    """H_alpha of one release at alpha = exp(epsilons), any sign.

    Args:
        epsilons: [k].
        z: noise std / clip of one user's row; two rows differ by up to 2 clips.
        n: number of users.

    >>> profile(np.array([0.0]), 2.0, 1).round(6)  # of two Gaussians one deviation apart
    array([0.382925])
    """
    up = np.abs(np.asarray(epsilons, dtype=float))
    above = _amplified(up, 2.0 / z, 1.0 / n)
    below = -np.expm1(-up) + np.exp(-up) * above
    return np.where(np.asarray(epsilons) >= 0, above, below)


def _amplified(epsilons: np.ndarray, mu: float, q: float) -> np.ndarray:
    """Q H_a(N(mu, 1) || N(0, 1)) with exp(epsilon) = 1 + q (a - 1), epsilon >= 0."""
    from scipy.special import log_ndtr, ndtr

    a = np.log1p(np.expm1(epsilons) / q)  # log of it
    there = ndtr(mu / 2.0 - a / mu) - np.exp(a + log_ndtr(-mu / 2.0 - a / mu))
    return q * np.maximum(there, 0.0)


@lru_cache(maxsize=256)
def _reach(z: float, n: int) -> float:
    """Loss beyond which less than `_TAIL` of the profile is left."""

    def left(loss: float) -> float:
        return float(_amplified(np.array([loss]), 2.0 / z, 1.0 / n)[0])

    high = 1e-6
    while left(high) > _TAIL:
        high *= 2.0
    low = high / 2.0
    for _ in range(20):
        middle = (low + high) / 2.0
        low, high = (middle, high) if left(middle) > _TAIL else (low, middle)
    return high


@lru_cache(maxsize=64)
def loss_distribution(z: float, n: int, cell: float) -> Any:
    """dp-accounting's pessimistic privacy loss distribution of one release, on multiples of `cell`."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    cells = max(math.ceil(_reach(z, n) / cell), 1)
    places = np.arange(-cells, cells + 1)
    deltas = np.minimum.accumulate(np.clip(profile(places * cell, z, n), 0.0, 1.0))
    return PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(cell, places, deltas)
    )


@lru_cache(maxsize=256)
def epsilon_of(rounds: tuple[tuple[float, int, int], ...], delta: float) -> float:
    """Epsilon at `delta` of (z, n, count) rounds: one of n users in each of `count` rounds of every kind.

    The cells are a tenth of the deviation of one round's loss, within [1e-7, 1e-3]; with any cell the
    number is an upper bound.
    """
    count = sum(k for _, _, k in rounds)
    spread = math.sqrt(sum(k * _variance(z, n) for z, n, k in rounds) / count)
    cell = float(np.clip(0.1 * spread, 1e-7, 1e-3))
    cell = max(cell, *(_reach(z, n) / _MOST_CELLS for z, n, _ in rounds))
    return composed_epsilon(((loss_distribution(z, n, cell), k) for z, n, k in rounds), delta)


def _variance(z: float, n: int) -> float:
    """About that of the loss of one release: (exp(mu^2) - 1) / n^2, and never more than mu^2 / n."""
    mu = 2.0 / z
    return min(math.expm1(min(mu * mu, 50.0)) / n**2, mu * mu / n)
