"""What recorded releases cost together, by the mechanisms and samplers that their records name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting import exact_gaussian
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms import ledger_class
from privrl_bench.privacy.sampling import ledger_sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_EXACT = ("pld", "gaussian")  # accountants that are exact for Gaussian mechanisms
# Of neighbouring sums, in clip norms; see `Poisson.relation` for add_or_remove.
_DISTANCE = {"zero_out": 1.0, "replace_one": 2.0, "any_trajectory_pair": 1.0}


def ledger_epsilon(
    releases: Iterable[ReleaseEvent], delta: float, accountant: str = "pld"
) -> float:
    """Smallest epsilon for which all of `releases`, about one user, are (epsilon, delta)-DP.

    Args:
        releases: every release that this user's data can have entered; a Counter gives multiplicities.
        delta: the guarantee's delta.
        accountant: pld | rdp | gaussian (exact; refuses anything but plain Gaussians).

    Returns: epsilon; 0 for no release, infinity for a release without noise.

    Raises:
        ConfigError: the accountant has no analysis of these releases.
        PrivacyError: no analysis exists for the combination.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta = {delta} is not a probability")
    counts = Counter(releases)
    if not counts:
        return 0.0
    exact = _exactly(counts, delta, accountant)
    if exact is not None:
        return exact
    from privrl_bench.privacy.accounting.accountants import epsilon

    event, chosen, adjacency = analysed(counts, accountant)
    return epsilon(event, delta, chosen, adjacency)


def _exactly(counts: Counter[ReleaseEvent], delta: float, accountant: str) -> float | None:
    """Epsilon where all releases are Gaussian mechanisms on fixed cohorts; None: `analysed` says what they are.

    What the accountant `ExactGaussian` gives, without importing dp-accounting.
    """
    found = gaussian_pairs(counts) if accountant in _EXACT else None
    if found is None:
        return None
    distance, pairs = found
    if any(z <= 0 for z, _ in pairs):
        return math.inf
    return exact_gaussian.epsilon_of(pairs, distance, delta)


def gaussian_pairs(
    counts: Counter[ReleaseEvent],
) -> tuple[float, tuple[tuple[float, int], ...]] | None:
    """Releases that are plain Gaussian mechanisms: distance of neighbouring sums in clips, (z, count) pairs.

    None: they are not, or not known to be, or of several adjacencies.
    """
    kinds = {(release.mechanism, release.adjacency) for release in counts}
    if len(kinds) > 1:
        return None
    ((record, _),) = kinds
    adjacency = _relation(counts)
    if adjacency not in _DISTANCE:
        return None
    pairs = ledger_class(record).gaussians(tuple(sorted(counts.items(), key=repr)))
    return None if pairs is None else (_DISTANCE[adjacency], pairs)


def _relation(counts: Counter[ReleaseEvent]) -> str:
    """The adjacency under which releases of one adjacency are analysed: it costs as much as their own.

    Their samplers say which (`Sampler.relation`), for mechanisms on one user's row; if not all say the same,
    their own.
    """
    found = set()
    for one in counts:
        relation = ledger_sampler(one.sampling).relation(one)
        found.add(relation if ledger_class(one.mechanism).subsampled else one.adjacency)
    return found.pop() if len(found) == 1 else next(iter(counts)).adjacency


def analysed(counts: Counter[ReleaseEvent], accountant: str) -> tuple[DpEvent, str, str]:
    """dp-accounting's event of at least one release, the accountant that analyses it, and the adjacency.

    Raises PrivacyError: releases under different adjacencies.
    """
    from dp_accounting import NonPrivateDpEvent

    adjacency, *others = {release.adjacency for release in counts}
    records = {release.mechanism for release in counts}
    if len(records) > 1:
        return NonPrivateDpEvent(), accountant, adjacency
    if others:
        raise PrivacyError(f"releases under different adjacencies {sorted([adjacency, *others])}")
    kind = ledger_class(records.pop())
    event = kind.composed(tuple(sorted(counts.items(), key=repr)))
    return event, kind.analysed_by or accountant, _relation(counts)
