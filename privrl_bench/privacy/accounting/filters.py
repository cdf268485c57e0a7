"""Privacy filters: how much may be released about the same users when each run is chosen after the others.

Later runs, their noise and their number may depend on what earlier ones released. Then the sum of the costs
that were realised is no guarantee, but a cap that is fixed in advance is one: a filter refuses every release
that would pass it (Rogers, Roth, Ullman and Vadhan 2016). Two filters are here. Kind, epsilon, delta, adjacency
and order are fixed when a budget is made.

1. `gaussian`. Costs are mu^2, of mu-Gaussian differential privacy (Dong, Roth and Su 2022). If the costs of all
   releases never exceed mu^2, everything is mu-GDP (Smith and Thakurta 2022; Koskela, Tobaben and Honkela
   2023), so (epsilon, delta)-DP by the exact formula of `exact_gaussian.py`. Plain Gaussian mechanisms cost (d
   / z)^2 each, d = 1 under zero-out and 2 under replace-one. Sampled cohorts and releases that state an epsilon
   of their own are refused: they have no mu here.
2. `renyi`. Costs are Renyi divergences of one order a > 1. If they never exceed rho, everything is (a, rho)-RDP
   (Feldman and Zrnic 2021, theorem 3.1), so (epsilon, delta)-DP with epsilon = rho + log((a - 1) / a) - (log
   delta + log a) / (a - 1) (Canonne, Kamath and Steinke 2020, proposition 12). One order, because which of
   several lasts longest depends on what was released.

Runs may overlap in time, and be settled at less than was reserved, since every release is one member of the
sequence that the filter bounds: given all earlier ones it is a Gaussian, or a sampled Gaussian, about data
that do not change, and the cost of all that is released never exceeds the cap. Correlated noise C^-1 w is that
in the coordinates C G + w, where a run that ends early has released its first rows. (For mechanisms that do
not split into releases, Haney et al. 2023 have it for f-DP and one Renyi order, if each is charged in full; a
tree is.)

Discrete noise adds `slack` to epsilon and takes this share off delta, in each run (`grid.py`, 4): the shares of
all runs together are at most `SLACK`, for which the cap leaves room.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from privrl_bench.errors import PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting import exact_gaussian
from privrl_bench.privacy.accounting.cost import analysed, gaussian_pairs
from privrl_bench.privacy.accounting.releases import ReleaseEvent

SLACK = 1e-4  # of discrete noise in all runs together
ADJACENCIES = ("zero_out", "replace_one")  # of users of a dataset
ORDERS = (*(1.0 + k / 10.0 for k in range(1, 100)), *(float(k) for k in range(11, 513)))
_ROUNDING = 1e-9  # relative, of sums of costs


@dataclass(frozen=True)
class PrivacyFilter:
    """A cap on what is released about one user, see the module. `cost` is what a run takes of `capacity`.

    Attributes:
        kind: gaussian | renyi.
        epsilon, delta: that everything together has.
        adjacency: of all releases: zero_out | replace_one | add_or_remove.
        order: of `renyi`, more than 1.
    """

    kind: str
    epsilon: float
    delta: float
    adjacency: str
    order: float | None = None

    @cached_property
    def capacity(self) -> float:
        """The largest sum of costs: mu^2, or the Renyi divergence of the order.

        Raises PrivacyError: epsilon is too small for delta.
        """
        epsilon, delta = self.epsilon - SLACK, self.delta * (1.0 - SLACK)
        if self.kind == "gaussian":
            return _largest_mu(epsilon, delta) ** 2 * (1.0 - _ROUNDING)
        assert self.order is not None
        found = epsilon - at_order(0.0, self.order, delta)
        if not found > 0:
            raise PrivacyError(
                f"order {self.order:g} leaves nothing of epsilon {shown_epsilon(self.epsilon)} at delta "
                f"{self.delta:g}"
            )
        return found * (1.0 - _ROUNDING)

    def cost(self, releases: Mapping[ReleaseEvent, int]) -> float:
        """What releases about one user take of the capacity.

        Raises:
            PrivacyError: they have no bound in this filter, or another adjacency.
        """
        counts = Counter(releases)
        if not counts:
            return 0.0
        others = {one.adjacency for one in counts} - {self.adjacency}
        if others:
            found = ", ".join(sorted(others))
            raise PrivacyError(f"the budget is for {self.adjacency}, the run has {found}")
        if self.kind == "gaussian":
            pairs = gaussian_pairs(counts)
            if pairs is None:
                raise PrivacyError(
                    "a gaussian filter has no bound for these releases, which are no plain Gaussian "
                    "mechanisms; a renyi filter may have one"
                )
            distance, zs = pairs
            return distance**2 * sum(n / z**2 if z > 0 else math.inf for z, n in zs)
        return _divergence(counts, float(self.order or 0.0))

    def fits(self, charged: float, cost: float) -> bool:
        """Whether a run of this cost may begin when so much is charged."""
        return charged + cost <= self.capacity * (1.0 + _ROUNDING)


def best_order(epsilon: float, delta: float) -> float:
    """The smallest order at which 95 % of the Gaussian releases of the best one fit into epsilon and delta.

    A smaller order costs less where a cohort was cut or noise is small.

    >>> best_order(4.0, 1e-6)
    6.0
    """
    fits = {a: (epsilon - at_order(0.0, a, delta)) / a for a in ORDERS}
    most = max(fits.values())
    return min(a for a in ORDERS if fits[a] >= min(0.95 * most, most))


def at_order(rho: float, order: float, delta: float) -> float:
    """Epsilon at `delta` of a Renyi divergence `rho` of an order."""
    return rho + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)


def _largest_mu(epsilon: float, delta: float) -> float:
    """The largest mu of which mu-GDP is (epsilon, delta)-DP."""
    low, high = 0.0, 1.0
    while exact_gaussian.epsilon_at(1.0 / high, delta) <= epsilon:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        if exact_gaussian.epsilon_at(1.0 / middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def _divergence(counts: Counter[ReleaseEvent], order: float) -> float:
    """Renyi divergence of releases about one user. Raises PrivacyError: no bound is known."""
    from privrl_bench.privacy.accounting.accountants import divergence

    event, _, adjacency = analysed(counts, "rdp")
    return divergence(event, order, adjacency)
