"""Epsilon of the Gaussian mechanism, exactly (Balle and Wang 2018, theorem 8), without importing dp-accounting.

    delta(epsilon) = Phi(1 / (2 s) - epsilon s) - exp(epsilon) Phi(-1 / (2 s) - epsilon s),   s = sigma

dp-accounting's `get_epsilon_gaussian` computes the same. Importing dp-accounting takes over half a second,
because it imports `scipy.stats` and `scipy.signal`, and most runs need nothing else of it. Every operation here
is that of dp-accounting 0.6.0, in the same order, so that results are equal to the last bit; a test compares
them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_LARGE_MU = 1e5  # above: a bound without search, larger than the exact value by about 1


@lru_cache(maxsize=512)
def epsilon_of(counts: tuple[tuple[float, int], ...], distance: float, delta: float) -> float:
    """Epsilon at `delta` of (noise multiplier, count) pairs of releases about one user.

    Composed Gaussians are one Gaussian with mu^2 = sum mu_i^2 (Dong, Roth and Su 2022).

    Args:
        counts: multipliers against one row, more than 0.
        distance: of two neighbouring sums, in clip norms: 1 zero-out, 2 replace-one.
        delta: in (0, 1).

    >>> round(epsilon_of(((1.0, 1),), 1.0, 1e-5), 6)
    4.377178
    """
    mu = distance * math.sqrt(sum(count / z**2 for z, count in counts))
    if mu > _LARGE_MU:
        # delta(epsilon) <= Phi(mu / 2 - epsilon / mu), its first term; the search loses digits here.
        return mu * (mu / 2.0 - NormalDist().inv_cdf(delta))
    return epsilon_at(1.0 / mu, delta)


def epsilon_at(sigma: float, delta: float) -> float:
    """Epsilon of one release with noise of `sigma` sensitivities, 0 < sigma < infinity.

    Args:
        sigma: noise standard deviation over sensitivity.
        delta: in (0, 1).
    """
    import numpy as np
    from scipy.optimize import brentq  # a fifth of a second to import

    log_delta = float(np.log(delta))

    def excess(epsilon: float) -> float:
        return _log_delta(sigma, epsilon) - log_delta

    if _log_delta(sigma, 0.0) < log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(sigma, high) > log_delta:
        low, high = high, high * 10.0
    return float(brentq(excess, low, high, xtol=1e-12))


def _log_delta(sigma: float, epsilon: float) -> float:
    """The logarithm of delta(epsilon)."""
    import numpy as np
    from scipy.special import log_ndtr

    middle = epsilon * sigma + 1.0 / (2.0 * sigma)
    x = log_ndtr(1.0 / sigma - middle)
    y = epsilon + log_ndtr(-middle)
    with np.errstate(divide="ignore"):  # ln of a delta that is 0 to rounding is -inf, as it should
        return float(x + np.log1p(-np.exp(y - x))) if y <= x else -math.inf
