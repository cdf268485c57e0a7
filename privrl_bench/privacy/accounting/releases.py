"""The plain record of a release: what a ledger line says, and what it costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting import exact_gaussian
from privrl_bench.privacy.grid import L1, L2
from privrl_bench.privacy.mechanisms import ledger_class
from privrl_bench.privacy.sampling import ledger_sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_EXACT = ("pld", "gaussian")  # accountants that are exact for Gaussian mechanisms
# Of neighbouring sums, in clip norms; see `Poisson.relation` for add_or_remove.
_DISTANCE = {"zero_out": 1.0, "replace_one": 2.0, "any_trajectory_pair": 1.0}


@dataclass(frozen=True)
class ReleaseEvent:
    """One noised release, as one user's guarantee sees it.

    It is a plain record for the file; `ledger_epsilon` turns it into a `DpEvent`.

    Attributes:
        mechanism: `gaussian`; `label`: no analysis, 1 / z is printed beside a caveat; `per_transition`:
            every update of a round draws `cap` of `population` transitions; `smooth`: (epsilon, delta) by
            its own theorem, z has no meaning; `none`: no noise. See `Mechanism.records`.
        z: joint noise multiplier over all blocks, noise std / bound of one user (Laplace: parameter / bound).
        adjacency: zero_out | replace_one | add_or_remove | any_trajectory_pair (z is against any other user).
        q: probability that a user joins the round, as the sampler draws it; 1: they are in it for certain.
        population, cap: number of users and largest cohort, as the sampler has them (or see
            `per_transition`); None for fixed cohorts.
        epsilon, delta: of `smooth` only.
        sampling: name of the sampler, which says what its draw does to the cost (`Sampler.wrap`).
    """

    mechanism: str
    z: float
    adjacency: str
    q: float = 1.0
    population: int | None = None
    cap: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    sampling: str = "fixed"

    @property
    def cost(self) -> float:
        """z^-2, which adds up over Gaussian releases about one user; infinity without noise."""
        return math.inf if self.z <= 0 else self.z**-2

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the ledger."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def joint_z(multipliers: Iterable[float], norm: int = L2) -> float:
    """Noise multiplier of blocks released together: `contribution.block_multipliers`; 0 if one is 0."""
    values = list(multipliers)
    if any(z == 0 for z in values):
        return 0.0
    if norm == L1:
        return 1.0 / sum(1.0 / z for z in values)
    return 1.0 / math.sqrt(sum(z**-2 for z in values))


def merged(releases: Iterable[ReleaseEvent]) -> list[ReleaseEvent]:
    """Attempts at one subsampled round with the same users, as one release: 1/z^2 adds up, in L1 norm 1/z.

    Gaussian mechanisms on one sample are together one Gaussian mechanism on it, which is then
    amplified once; of Laplace mechanisms one is at most that (`grid.py`, 5).
    """
    groups: dict[ReleaseEvent, list[float]] = {}
    for release in releases:
        groups.setdefault(replace(release, z=0.0), []).append(release.z)
    return [
        replace(kind, z=joint_z(several, ledger_class(kind.mechanism).norm or L2))
        for kind, several in groups.items()
    ]


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
    kinds = {(release.mechanism, release.adjacency) for release in counts}
    if accountant not in _EXACT or len(kinds) > 1:
        return None
    ((record, _),) = kinds
    adjacency = _relation(counts)
    if adjacency not in _DISTANCE:
        return None
    pairs = ledger_class(record).gaussians(tuple(sorted(counts.items(), key=repr)))
    if pairs is None:
        return None
    if any(z <= 0 for z, _ in pairs):
        return math.inf
    return exact_gaussian.epsilon_of(exact_gaussian.merged(pairs), _DISTANCE[adjacency], delta)


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


def epsilon_paper(z: float, delta: float) -> float:
    """What DPPG prints for one release: two classical bounds, switched at epsilon = 1.

    Valid as an upper bound for a single release under zero-out adjacency only.

    Source: "Differentially Private Policy Gradient", appendix B.1; the second bound is theorem 5 of
    Zhao et al. 2019.

    >>> round(epsilon_paper(1.0, 1e-3), 4), round(epsilon_paper(1.0, 1e-5), 4)
    (3.8243, 5.0004)
    """
    if z <= 0:
        return math.inf
    first = math.sqrt(2.0 * math.log(1.25 / delta)) / z
    if first < 1.0:
        return first
    c = math.sqrt(math.log(2.0 / (math.sqrt(16.0 * delta + 1.0) - 1.0)))
    return (1.0 + 2.0 * math.sqrt(2.0) * c * z) / (2.0 * z**2)
