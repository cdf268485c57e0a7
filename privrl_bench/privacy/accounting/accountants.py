"""Accountants: which one analyses an event, and epsilon.

Three properties of dp-accounting are handled here (each pinned by a test): its RDP accountant ignores the
neighbouring relation for a Gaussian, so replace-one must be doubled by hand; its PLD accountant doubles by
itself, so it must not be doubled twice; and its PLD stays above the exact value at very small z, so pure
Gaussian compositions use the exact formula of Balle and Wang 2018. Pinned to dp-accounting 0.6.0 in
constraints.txt.

Importing this module imports dp-accounting, so callers import it where they need it.
"""

from __future__ import annotations

import logging
import math
import warnings
from abc import abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import attr
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PrivacyAccountant,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting import capped_poisson, exact_gaussian, single_user
from privrl_bench.privacy.accounting.capped_poisson import Cohorts

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL

RELATIONS = {
    "zero_out": ZERO_OUT,
    "replace_one": REPLACE_ONE,
    "add_or_remove": ADD_OR_REMOVE,
    "any_trajectory_pair": ZERO_OUT,  # z is already the distance of the two neighbours
}


@attr.s(frozen=True, slots=True, auto_attribs=True)
class StatedDpEvent(DpEvent):
    """A release that states its own guarantee, (epsilon, delta)-DP by a theorem that composes with nothing.

    Without delta: a label, what published code prints for a release without an analysis; it does not add up.
    """

    epsilon: float
    delta: float | None = None


# --- accountants


class Composition(PrivacyAccountant):
    """Counts the simple events of a composition; subclasses say which they take and what they cost."""

    what: ClassVar[str]  # for the message about a relation without an analysis
    relations: ClassVar[tuple[NeighboringRelation, ...]] = (ZERO_OUT, REPLACE_ONE, ADD_OR_REMOVE)

    def __init__(self, relation: NeighboringRelation):
        super().__init__(relation)
        self._counts: dict[Any, int] = {}

    @abstractmethod
    def key(self, event: DpEvent) -> Any:
        """What is counted of a simple event, or None if it is not supported."""

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        """See `PrivacyAccountant`."""
        if isinstance(event, ComposedDpEvent):
            failures = (self._maybe_compose(one, count, do_compose) for one in event.events)
            return next((one for one in failures if one is not None), None)
        if isinstance(event, SelfComposedDpEvent):
            return self._maybe_compose(event.event, count * event.count, do_compose)
        key = "none" if isinstance(event, NonPrivateDpEvent) else self.key(event)
        if key is None:
            return self.CompositionErrorDetails(event, "not supported")
        if do_compose:
            self._counts[key] = self._counts.get(key, 0) + count
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """See `PrivacyAccountant`. Raises PrivacyError: no analysis under this neighbouring relation."""
        if "none" in self._counts:
            return math.inf
        if self.neighboring_relation not in self.relations:
            relation = {value: name for name, value in RELATIONS.items()}[self.neighboring_relation]
            raise PrivacyError(f"{self.what} have no analysis under {relation}")
        return self.total(tuple(self._counts.items()), target_delta)

    @abstractmethod
    def total(self, counts: tuple[tuple[Any, int], ...], delta: float) -> float:
        """Epsilon of (key, count) pairs."""


class ExactGaussian(Composition):
    """Composed Gaussians, by `exact_gaussian.py`.

    z is for one row against none; replacing a row moves the sum twice as far.
    """

    what = "fixed cohorts"
    relations = (ZERO_OUT, REPLACE_ONE)

    def key(self, event: DpEvent) -> Any:
        """The noise multiplier."""
        return event.noise_multiplier if isinstance(event, GaussianDpEvent) else None

    def total(self, counts: tuple[tuple[Any, int], ...], delta: float) -> float:
        """See `Composition`."""
        distance = 2.0 if self.neighboring_relation is REPLACE_ONE else 1.0
        return exact_gaussian.epsilon_of(counts, distance, delta)


class SingleUser(Composition):
    """One of n users in every round, under the Gaussian mechanism: `single_user.py`."""

    what = "rounds of one of n users"
    relations = (REPLACE_ONE,)

    def key(self, event: DpEvent) -> Any:
        """(z, n)."""
        sampled = isinstance(event, SampledWithoutReplacementDpEvent) and event.sample_size == 1
        if not sampled or not isinstance(event.event, GaussianDpEvent):
            return None
        return event.event.noise_multiplier, event.source_dataset_size

    def total(self, counts: tuple[tuple[Any, int], ...], delta: float) -> float:
        """See `Composition`."""
        return single_user.epsilon_of(tuple((z, n, count) for (z, n), count in counts), delta)


class CappedPoisson(Composition):
    """Poisson-sampled Gaussians, with or without a cap, by privacy loss distributions: `capped_poisson.py`."""

    what = "Poisson cohorts"
    relations = (ADD_OR_REMOVE, ZERO_OUT)

    def key(self, event: DpEvent) -> Any:
        """The cohort."""
        if isinstance(event, TruncatedSubsampledGaussianDpEvent):
            size, cap = event.dataset_size, event.truncated_batch_size
            return Cohorts(event.noise_multiplier, event.sampling_probability, size, cap)
        if isinstance(event, GaussianDpEvent):
            return Cohorts(event.noise_multiplier, 1.0)
        poisson = isinstance(event, PoissonSampledDpEvent)
        if not poisson or not isinstance(event.event, GaussianDpEvent):
            return None
        return Cohorts(event.event.noise_multiplier, event.sampling_probability)

    def total(self, counts: tuple[tuple[Any, int], ...], delta: float) -> float:
        """See `Composition`."""
        return capped_poisson.epsilon_of(counts, delta)


class Stated(Composition):
    """Releases that state their own guarantee. With a delta there is no bound for more than one."""

    what = "releases with a guarantee of their own"

    def key(self, event: DpEvent) -> Any:
        """The event."""
        return event if isinstance(event, StatedDpEvent) else None

    def total(self, counts: tuple[tuple[Any, int], ...], delta: float) -> float:
        """See `Composition`."""
        proven = [(one.delta, n) for one, n in counts if one.delta is not None]
        if proven and (len(counts) > 1 or proven[0][1] > 1 or proven[0][0] > delta):
            return math.inf
        return max(one.epsilon for one, _ in counts)


class DoubledRdp(RdpAccountant):
    """dp-accounting's RDP, which takes replace-one as twice the distance; `orders`: None: its default."""

    def __init__(self, relation: NeighboringRelation, orders: tuple[float, ...] | None = None):
        super().__init__(orders, relation)

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        """See `PrivacyAccountant`."""
        nested = isinstance(event, ComposedDpEvent | SelfComposedDpEvent | NonPrivateDpEvent)
        if self.neighboring_relation is REPLACE_ONE and not nested:
            halved = _halved(event)
            if halved is None:
                return self.CompositionErrorDetails(event, "its distance cannot be doubled")
            event = halved
        return super()._maybe_compose(event, count, do_compose)


def _halved(event: Any) -> DpEvent | None:
    """The same Gaussian event for rows that are 2 clips apart; None for any other law."""
    if isinstance(event, GaussianDpEvent):
        return GaussianDpEvent(event.noise_multiplier / 2.0)
    if isinstance(event, SampledWithoutReplacementDpEvent):
        size, sample, inner = event.source_dataset_size, event.sample_size, _halved(event.event)
        return None if inner is None else SampledWithoutReplacementDpEvent(size, sample, inner)
    return None


# The first that supports an event analyses it. Events that only dp-accounting knows go to its accountants.
ACCOUNTANTS: dict[str, tuple[type[Any], ...]] = {
    "pld": (Stated, ExactGaussian, SingleUser, CappedPoisson, PLDAccountant),
    "rdp": (Stated, DoubledRdp),
    "gaussian": (Stated, ExactGaussian),
}


def accountant_of(event: DpEvent, accountant: str, adjacency: str) -> PrivacyAccountant:
    """A fresh accountant for an event.

    Args:
        event: everything released about one user.
        accountant: pld | rdp | gaussian.
        adjacency: see `RELATIONS`.

    Raises:
        ConfigError: this accountant has no analysis of the event, and another one may have.
        PrivacyError: none has.
    """
    for kind in ACCOUNTANTS[accountant]:
        made: PrivacyAccountant = kind(RELATIONS[adjacency])
        if made.supports(event):
            return made
    if accountant == "pld":
        raise PrivacyError(f"no analysis of {event} under {adjacency}")
    raise ConfigError(
        "privacy.accountant",
        f"{accountant} has no analysis of these releases under {adjacency}; use pld",
    )


@lru_cache(maxsize=512)
def epsilon(
    event: DpEvent, delta: float, accountant: str = "pld", adjacency: str = "zero_out"
) -> float:
    """Smallest epsilon for which `event` is (epsilon, delta)-DP; infinite without noise.

    Args:
        event: everything released about one user; compositions hold tuples.
        delta: the guarantee's delta.
        accountant: pld | rdp | gaussian.
        adjacency: zero_out | replace_one | add_or_remove | any_trajectory_pair.

    Raises: see `accountant_of`; PrivacyError: no analysis under this adjacency.

    >>> round(epsilon(GaussianDpEvent(1.0), 1e-5), 6)
    4.377178
    """
    logging.getLogger("absl").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # RDP orders that do not converge at small z are dropped; that only loosens the bound.
        warnings.simplefilter("ignore")
        made = accountant_of(event, accountant, adjacency)
        return float(made.compose(event).get_epsilon(delta))


class OneOrder(DoubledRdp):
    """Renyi divergence of one order, also of Poisson cohorts that are cut at a cap.

    Let A be the others who are drawn, and M = E over A of exp((a - 1) D), which bounds that of the release, as
    A has one law for both neighbours. With |A| < cap it is the sampled Gaussian. With |A| >= cap, of chance
    pi, the user has a place with chance p <= q, and then moves the sum by at most d clips: d = 1 under
    zero-out, where the place is the user's in both, and 2 under add-or-remove, where it is another user's in
    one of them. So, by joint convexity, M <= (1 - pi) M_q + pi (1 + q (exp((a - 1) a d^2 / (2 z^2)) - 1)).
    """

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        """See `PrivacyAccountant`."""
        if not isinstance(event, TruncatedSubsampledGaussianDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        if self.neighboring_relation is REPLACE_ONE:
            return self.CompositionErrorDetails(event, "its distance cannot be doubled")
        if do_compose:
            self._rdp += count * self._cut(event)
        return None

    def _cut(self, event: TruncatedSubsampledGaussianDpEvent) -> Any:
        import numpy as np
        from scipy.stats import binom

        z, q, cap = event.noise_multiplier, event.sampling_probability, event.truncated_batch_size
        plain = OneOrder(self.neighboring_relation, tuple(self._orders))
        plain.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)))
        rest = float(binom.logsf(cap - 1, event.dataset_size - 1, q))
        power = self._orders - 1.0
        distance = 2.0 if self.neighboring_relation is ADD_OR_REMOVE else 1.0
        moved = power * self._orders * (distance / z) ** 2 / 2.0
        log_moved = np.logaddexp(np.log1p(-q), np.log(q) + moved)
        return np.logaddexp(power * plain._rdp, rest + log_moved) / power


def divergence(event: DpEvent, order: float, adjacency: str) -> float:
    """Renyi divergence of an order > 1 of everything released about one user; infinite without noise.

    Raises:
        PrivacyError: no bound is known.
    """
    made = OneOrder(RELATIONS[adjacency], (order,))
    if not made.supports(event):
        raise PrivacyError(f"these releases have no Renyi bound under {adjacency}")
    logging.getLogger("absl").setLevel(logging.ERROR)
    return float(made.compose(event)._rdp[0])
