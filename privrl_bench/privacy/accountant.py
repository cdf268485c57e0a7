"""Epsilon of what was released: a thin, guarded layer over Google's dp-accounting.

Three traps of that library are closed here (each pinned by a test):
its RDP accountant ignores the neighbouring relation for a Gaussian, so replace-one must be doubled by
hand; its PLD accountant doubles by itself, so it must not be doubled twice; and its PLD stays above the
exact value at very small z, so pure Gaussian compositions use the exact formula of Balle and Wang 2018 (so no
replace-one event reaches PLD today). Pinned to dp-accounting 0.6.0 in constraints.txt.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy import poisson, uniform_single_user
from privrl_bench.privacy.poisson import Cohorts

_LARGE_MU = 1e5  # above: a bound without search, larger than the exact value by about 1


@dataclass(frozen=True)
class ReleaseEvent:
    """One noised release, as one user's guarantee sees it.

    Attributes:
        mechanism: `gaussian`; `label`: no analysis, 1 / z is printed beside a caveat; `per_transition`: every
            update of a round draws `cap` of `population` transitions; `smooth`: it is (epsilon, delta) by its
            own theorem (`smooth.py`), z says nothing; `none`: no noise.
        z: joint noise multiplier over all blocks, noise std / L2 bound of one user.
        adjacency: zero_out | replace_one | add_or_remove | any_trajectory_pair (local: z is against any other user).
        q: chance that a user joins the round: 1 for fixed cohorts; below 1 independently of the others
            (Poisson), or under replace_one as one of n.
        population, cap: number of people and largest cohort (Poisson sampling; one of n: n and 1; or see
            `per_transition`).
        epsilon, delta: of `smooth` only.
    """

    mechanism: str
    z: float
    adjacency: str
    q: float = 1.0
    population: int | None = None
    cap: int | None = None
    epsilon: float | None = None
    delta: float | None = None

    @property
    def cost(self) -> float:
        """z^-2, which adds up over releases about one user; infinity without noise."""
        return math.inf if self.mechanism != "gaussian" or self.z <= 0 else self.z**-2

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the ledger."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def _one_of_n(release: ReleaseEvent) -> bool:
    """Whether exactly one of a known number of people was drawn."""
    return release.adjacency == "replace_one" and release.q < 1.0


def _smooth(counts: Counter[ReleaseEvent], delta: float) -> float:
    """Of one release: its own epsilon, if its delta is enough. Of several at one delta: no bound."""
    (release, *others), total = list(counts), sum(counts.values())
    if others or total > 1 or release.epsilon is None or (release.delta or 1.0) > delta:
        return math.inf
    return release.epsilon


def merged(releases: Iterable[ReleaseEvent]) -> list[ReleaseEvent]:
    """Attempts at one subsampled round that met the same people, as one release: 1/z^2 adds up.

    Gaussian mechanisms on one sample are together one Gaussian mechanism on it, which is then amplified once.
    """
    groups: dict[ReleaseEvent, list[float]] = {}
    for release in releases:
        groups.setdefault(replace(release, z=0.0), []).append(release.z)
    return [replace(kind, z=joint_z(several)) for kind, several in groups.items()]


def joint_z(multipliers: Iterable[float]) -> float:
    """Noise multiplier of blocks released together: 1/z^2 = sum of 1/z_b^2; 0 if any block is 0."""
    values = list(multipliers)
    if any(z == 0 for z in values):
        return 0.0
    return 1.0 / math.sqrt(sum(z**-2 for z in values))


def epsilon(releases: Iterable[ReleaseEvent], delta: float, accountant: str = "pld") -> float:
    """Smallest epsilon for which everything in `releases`, all about one user, is (epsilon, delta)-DP.

    Args:
        releases: every release that this user's data can have entered; a Counter says how often each.
        delta: the guarantee's delta.
        accountant: pld | rdp | gaussian (exact; refuses anything but plain Gaussians).

    Returns: epsilon; 0 for no release, infinity for a release without noise.

    Raises:
        ConfigError: `gaussian` was asked for subsampled releases.
        PrivacyError: no analysis exists for the combination.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta = {delta} is no probability")
    counts = Counter(releases)
    if not counts:
        return 0.0
    if all(release.mechanism == "label" and release.z > 0 for release in counts):
        return max(1.0 / release.z for release in counts)
    if all(release.mechanism == "per_transition" and release.z > 0 for release in counts):
        return max(_per_transition(release, delta) for release in counts)
    if any(release.mechanism == "smooth" for release in counts):
        return _smooth(counts, delta)
    if any(release.mechanism != "gaussian" or not release.z > 0 for release in counts):
        return math.inf
    relations = {release.adjacency for release in counts}
    if len(relations) != 1:
        raise PrivacyError(f"releases under different adjacencies {sorted(relations)}")
    key = tuple(sorted(counts.items(), key=repr))
    if accountant == "pld" and all(_one_of_n(release) for release in counts):
        return uniform_single_user.epsilon_of(
            tuple((release.z, int(release.population or 1), count) for release, count in key), delta
        )
    if all(release.q == 1.0 for release in counts) and accountant in ("pld", "gaussian"):
        return _exact(key, delta)
    if accountant == "gaussian":
        raise ConfigError(
            "privacy.accountant", "gaussian is exact for fixed cohorts only; use pld with Poisson"
        )
    return _poisson(key, delta) if accountant == "pld" else _rdp(key, delta)


@lru_cache(maxsize=256)
def _exact(counts: tuple[tuple[ReleaseEvent, int], ...], delta: float) -> float:
    """Composed Gaussians are one Gaussian with mu^2 = sum mu_i^2 (Dong, Roth and Su 2022)."""
    import dp_accounting
    import numpy as np

    adjacency = counts[0][0].adjacency
    if adjacency not in ("zero_out", "replace_one", "any_trajectory_pair"):
        raise PrivacyError(f"fixed cohorts have no analysis under {adjacency}")
    mu2 = sum(count / release.z**2 for release, count in counts)
    # The ledger holds z for one row against none; replacing a row moves the sum twice as far. On a device
    # (any_trajectory_pair) z is already for any other user.
    distance = 2.0 if adjacency == "replace_one" else 1.0
    mu = distance * math.sqrt(mu2)
    if mu > _LARGE_MU:
        # delta(epsilon) <= Phi(mu / 2 - epsilon / mu), its first term; the search loses digits up here.
        return mu * (mu / 2.0 - NormalDist().inv_cdf(delta))
    with np.errstate(
        divide="ignore"
    ):  # log of 0 where a delta is 0 to rounding: it means -inf there
        return float(dp_accounting.get_epsilon_gaussian(1.0 / mu, delta))


def _poisson(counts: tuple[tuple[ReleaseEvent, int], ...], delta: float) -> float:
    """Poisson-sampled releases by privacy loss distributions; cohorts larger than `cap` are cut."""
    if counts[0][0].adjacency not in ("add_or_remove", "zero_out"):
        raise PrivacyError("Poisson sampling is analysed for add_or_remove and zero_out only")
    found: Counter[Cohorts] = Counter()
    for release, count in counts:
        found[Cohorts(release.z, release.q, release.population, release.cap)] += count
    return poisson.epsilon_of(tuple(found.items()), delta)


@lru_cache(maxsize=256)
def _rdp(counts: tuple[tuple[ReleaseEvent, int], ...], delta: float) -> float:
    """dp-accounting's RDP with default orders, on grouped events."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    adjacency = counts[0][0].adjacency
    drawn = any(release.q < 1.0 for release, _ in counts)
    relation = {
        "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
        "add_or_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    }["add_or_remove" if drawn and adjacency == "zero_out" else adjacency]  # see `poisson.py`
    distance = 2.0 if adjacency == "replace_one" else 1.0
    logging.getLogger("absl").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Orders that do not converge at small z are dropped; that only loosens the bound.
        warnings.simplefilter("ignore")
        ledger: Any = RdpAccountant(neighboring_relation=relation)
        for release, count in counts:
            event: Any = dp_accounting.GaussianDpEvent(release.z / distance)
            if _one_of_n(release):  # rows are 2 clips apart: `distance`
                people = int(release.population or 1)
                event = dp_accounting.SampledWithoutReplacementDpEvent(people, 1, event)
            elif release.q < 1.0:
                event = _sampled(release)
            if not ledger.supports(event):
                raise PrivacyError(f"no rdp analysis for {release}")
            ledger.compose(event, count)
        return float(ledger.get_epsilon(delta))


def _sampled(release: ReleaseEvent) -> Any:
    """RDP's event of one Poisson-sampled release."""
    import dp_accounting

    if release.adjacency not in ("add_or_remove", "zero_out"):
        raise PrivacyError("Poisson sampling is analysed for add_or_remove and zero_out only")
    if release.cap is not None and release.population is not None:
        raise ConfigError(
            "privacy.accountant", "rdp has no analysis of capped Poisson cohorts; use pld"
        )
    return dp_accounting.PoissonSampledDpEvent(release.q, dp_accounting.GaussianDpEvent(release.z))


@lru_cache(maxsize=256)
def _per_transition(release: ReleaseEvent, delta: float) -> float:
    """Of one transition that stays in a full memory of M for M updates, each of B drawn without replacement.

    Every one of B clipped gradients gets noise z clip, so their sum has z sqrt(B) clip, and replacing one moves
    it by 2 clip. However many rounds there are, so many updates meet it. By RDP (Wang, Balle and
    Kasiviswanathan 2019), the only analysis dp-accounting has of this.

    >>> round(_per_transition(ReleaseEvent("per_transition", 0.4, "replace_one", 1.0, 10_000, 128), 1e-5), 2)
    5.84
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    if release.adjacency != "replace_one":
        raise PrivacyError("drawing without replacement is analysed for replace_one only")
    memory, batch = int(release.population or 0), int(release.cap or 0)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    gaussian = dp_accounting.GaussianDpEvent(release.z * math.sqrt(batch) / 2.0)
    logging.getLogger("absl").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # orders that do not converge are dropped
        ledger: Any = RdpAccountant(neighboring_relation=relation)
        event: Any = gaussian
        if batch < memory:
            event = dp_accounting.SampledWithoutReplacementDpEvent(memory, batch, gaussian)
        ledger.compose(event, memory)
        return float(ledger.get_epsilon(delta))


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
