"""Poisson-sampled cohorts under Gaussian noise: epsilon from privacy loss distributions on a scaled grid.

dp-accounting builds the pessimistic distribution of one release ("connect the dots", Doroshenko et al. 2022) on
multiples of a cell. A cell of width h adds up to h^2 / 4 to the variance of one release's loss, so a cell must
be small beside the deviation of that loss: a fixed cell of 1e-3 costs 15 % of epsilon at q = 0.001, z = 1.5,
T = 1000. With any cell the number is an upper bound.

Zero-out has the analysis of add-or-remove. The cohort is drawn from N public places, whoever is there, so an
absent user is a row of zeros in both relations. Given the other users A who are drawn, let x be the user's row,
|x| <= 1, and the sum of the others the origin:

- |A| < cap: q N(x) + (1 - q) N(0) against N(0), in both directions: the dominating pair of add-or-remove.
- |A| >= cap: with chance p the user has the place of another one, whose row is y, |y| <= 1. This is
  p N(x - y) + (1 - p) N(0) against p N(-y) + (1 - p) N(0) (zero-out), or against N(0) (the other one moves up,
  add-or-remove). dp-accounting bounds it by rows 2 and -2 in place of x - y and -y, which covers both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

_FINEST, _COARSEST = 1e-8, 1e-3  # cells
_MOST_CELLS = 200_000  # of one release; dp-accounting takes about 10 microseconds for each
_ROUNDING = 2.0**-52  # of delta, for each composition
_LEAST_TAIL, _TAIL_STEP = -50, 7  # of ln of the mass that is counted as an infinite loss


class Cohorts(NamedTuple):
    """One Poisson-sampled release: who joins with chance `q`, at most `cap` of `population` (None: no cap)."""

    z: float
    q: float
    population: int | None = None
    cap: int | None = None


def cell_of(rounds: tuple[tuple[Cohorts, int], ...], tail: int = _LEAST_TAIL) -> float:
    """Width of the cells: a tenth of the deviation of one release's loss, so that T of them add about 0.2 %.

    >>> f"{cell_of(((Cohorts(1.5, 0.001), 1000),)):.2g}", cell_of(((Cohorts(0.3, 0.1), 10),))
    ('7.5e-05', 0.001)
    """
    count = sum(k for _, k in rounds)
    spread = math.sqrt(sum(k * _variance(one) for one, k in rounds) / count)
    cell = min(max(0.1 * spread, _FINEST), _COARSEST)
    return max([cell, *(_reach(one, tail) / _MOST_CELLS for one, _ in rounds)])


def _variance(one: Cohorts) -> float:
    """About that of the loss of one release: q^2 (exp(1 / z^2) - 1), and never more than q / z^2."""
    mu2 = one.z**-2
    return min(math.expm1(min(mu2, 50.0)) * one.q**2, mu2 * one.q)


def _reach(one: Cohorts, tail: int) -> float:
    """Losses beyond this are left out. Of a cut cohort rows may be two clips apart."""
    mu = (1.0 if one.cap is None else 2.0) / one.z
    far = math.sqrt(-2.0 * tail) * mu + mu * mu / 2.0
    return far if far > 50.0 else math.log1p(one.q * math.expm1(far))


@lru_cache(maxsize=64)
def loss_distribution(one: Cohorts, cell: float, tail: int) -> Any:
    """dp-accounting's pessimistic distribution of the loss of one release, on multiples of `cell`.

    What is beyond a tail of mass exp(tail) counts as an infinite loss.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    if one.cap is None or one.population is None:
        return pld.from_gaussian_mechanism(
            one.z,
            value_discretization_interval=cell,
            log_mass_truncation_bound=tail,
            sampling_prob=one.q,
        )
    return pld.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=one.population,
        sampling_probability=one.q,
        truncated_batch_size=one.cap,
        noise_multiplier=one.z,
        value_discretization_interval=cell,
        log_mass_truncation_bound=tail,
    )


@lru_cache(maxsize=256)
def epsilon_of(rounds: tuple[tuple[Cohorts, int], ...], delta: float) -> float:
    """Epsilon at `delta` under add-or-remove of (release, count) pairs, at least one.

    Infinite where a loss is so large (z = 1e-4) that its exponential is no number.
    """
    # Ln of the mass to leave out of one release: a thousandth of delta over all of them, in few steps.
    enough = math.log(1e-3 * delta / sum(k for _, k in rounds))
    tail = max(_LEAST_TAIL, _TAIL_STEP * math.floor(enough / _TAIL_STEP))
    cell = cell_of(rounds, tail)
    try:
        return composed_epsilon(
            ((loss_distribution(one, cell, tail), k) for one, k in rounds), delta
        )
    except OverflowError:
        return math.inf


def composed_epsilon(losses: Iterable[tuple[Any, int]], delta: float) -> float:
    """Epsilon at `delta` of (privacy loss distribution, count) pairs, at least one.

    T compositions by FFT round delta by about T 1e-17, measured on exact Gaussians; T 2^-52 is taken off.
    """
    pairs = tuple(losses)
    each = (law.self_compose(k) if k > 1 else law for law, k in pairs)
    total = reduce(lambda one, other: one.compose(other), each)
    left = delta - sum(k for _, k in pairs) * _ROUNDING
    return float(total.get_epsilon_for_delta(left)) if left > 0 else math.inf
