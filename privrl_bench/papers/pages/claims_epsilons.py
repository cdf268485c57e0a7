"""Exact epsilons of the mechanisms that the papers print, for write_claims.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent


def gaussian(z: float, delta: float, adjacency: str, releases: int = 1) -> float:
    """Exact epsilon of Gaussian releases about one user."""
    return ledger_epsilon(
        [ReleaseEvent("gaussian", z, adjacency, sampling="fixed")] * releases, delta
    )


def classical_z(value: float, delta: float) -> float:
    """The z that the classical formula gives for an epsilon."""
    return math.sqrt(2 * math.log(1.25 / delta)) / value


@cache
def poisson_rdp(z: float, q: float, rounds: int, delta: float) -> float:
    """What a moments accountant prints: dp-accounting's RDP with default orders."""
    return ledger_epsilon(
        [ReleaseEvent("gaussian", z, "add_or_remove", q, sampling="poisson")] * rounds, delta, "rdp"
    )


@cache
def poisson(z: float, q: float, rounds: int, delta: float, replace: bool = False) -> float:
    """The tight value: privacy loss distributions. For Poisson sampling, zero-out is add-or-remove."""
    if not replace:
        return ledger_epsilon(
            [ReleaseEvent("gaussian", z, "add_or_remove", q, sampling="poisson")] * rounds, delta
        )
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    ledger = PLDAccountant(relation, value_discretization_interval=1e-3)
    ledger.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), rounds)
    return float(ledger.get_epsilon(delta))


def poisson_count(z: float, q: float, rounds: int, delta: float, adjacency: str) -> float:
    """Upper bound where PLD cannot go: half of delta for taking part more often than k times."""
    from scipy import stats

    k = int(stats.binom.isf(delta / 2, rounds, q))
    return gaussian(z / math.sqrt(k), delta / 2, adjacency)


def rounds_for(cost: Callable[[int], float], target: float, start: int, tolerance: float) -> int:
    """The T at which a rising `cost` reaches `target`: secant steps, until within `tolerance` of T."""
    low, high = start, round(1.4 * start)
    at_low, at_high = cost(low), cost(high)
    while True:
        step = (target - at_high) * (high - low) / (at_high - at_low)
        low, at_low, high = high, at_high, max(1, round(high + step))
        if abs(high - low) <= max(1.0, tolerance * high):
            return high
        at_high = cost(high)


def rdp_floor(delta: float) -> float:
    """What dp-accounting's conversion costs at its largest default order, before any loss."""
    from dp_accounting.rdp import rdp_privacy_accountant

    order = max(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def delta_at(z: float, value: float) -> float:
    """Delta of one Gaussian release at an epsilon (Balle and Wang 2018)."""
    from scipy import stats

    mu = 1 / z
    below = stats.norm.logcdf(-mu / 2 - value / mu) + value
    return float(stats.norm.cdf(mu / 2 - value / mu) - math.exp(below))
