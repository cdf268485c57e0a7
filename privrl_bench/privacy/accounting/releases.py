"""The plain record of a release: what a ledger line says. What it costs: `cost.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from privrl_bench.privacy.grid import L1, L2


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
    sampling: str = field(kw_only=True)

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


def merged(releases: Iterable[ReleaseEvent], norm: int) -> list[ReleaseEvent]:
    """Attempts at one subsampled round with the same users, as one release: 1/z^2 adds up, in L1 norm 1/z.

    Gaussian mechanisms on one sample are together one Gaussian mechanism on it, which is then
    amplified once; of Laplace mechanisms one is at most that (`grid.py`, 5).
    """
    groups: dict[ReleaseEvent, list[float]] = {}
    for release in releases:
        groups.setdefault(replace(release, z=0.0), []).append(release.z)
    return [replace(kind, z=joint_z(several, norm)) for kind, several in groups.items()]


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
