"""From a budget to a number of rounds, or to a noise multiplier."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.errors import PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent

if TYPE_CHECKING:
    from privrl_bench.privacy.account import Account

_MOST_Z = 1e5
_RANGE = 1e-6, 1e6  # of `privacy.z`
_CLOSE = 2e-4  # how much less than the target epsilon a calibrated z may cost, relative


def rounds_for(
    budget: float, event: ReleaseEvent, delta: float, accountant: str = "pld", most: int = 10**7
) -> int:
    """Largest number of releases like `event`, all about one user, that costs at most `budget`; 0: none.

    >>> rounds_for(8.0, ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed"), 1e-5)
    2
    """
    return bisect_right(
        range(1, most + 1),
        budget,
        key=lambda n: ledger_epsilon(Counter({event: n}), delta, accountant),
    )


def z_for(
    budget: float,
    event: Callable[[float], ReleaseEvent],
    count: int,
    delta: float,
    accountant: str = "pld",
    digits: int = 4,
) -> float:
    """Smallest z of so many decimal digits with which `count` releases `event(z)` cost at most `budget`.

    All releases are about one user.

    >>> z_for(1.0, lambda z: ReleaseEvent("gaussian", z, "zero_out", sampling="fixed"), 1, 1e-5)
    3.731
    """

    def cost(z: float) -> float:
        return ledger_epsilon(Counter({event(z): count}), delta, accountant)

    def unit(z: float) -> float:
        return float(10.0 ** (math.floor(math.log10(z)) - digits + 1))

    z = least_noise(cost, budget)
    z = round(math.ceil(z / unit(z) - 1e-3) * unit(z), 12)
    while cost(z) > budget:  # what is reported is what was checked
        z = round(z + unit(z), 12)
    while (less := round(z - unit(z), 12)) > 0 and cost(less) <= budget:
        z = less  # below a power of ten its unit is smaller
    return z


def affordable(account: Account, r: int, budget: float) -> int:
    """How many of the planned rounds of replica r cost at most `budget`: fixed in advance, public."""
    config = account.configs[r]
    if account.participation is None:
        event = account.event(r)
        event = replace(event, z=event.z * config.preview_scale)
        rounds = range(1, account.rounds + 1)
        return bisect_right(rounds, budget, key=lambda n: account.epsilon_of(r, {event: n}))
    return account.rounds if account.real_epsilon(r) <= budget else 0


def calibrated_z(account: Account, r: int, target: float) -> float:
    """Smallest z, to 6 digits, with which all planned rounds of replica r cost at most `target`.

    They cost at least (1 - 2e-4) `target`, by the accountant of the run with everything that it counts, such as
    caps of cohorts and discrete noise.

    Raises:
        PrivacyError: no z within the range of `privacy.z` does.
    """
    event, count = account.mechanism.planned_releases(r, account.participation)
    own = account.configs[r].noise_multiplier
    scale = event.z / own if own else 1.0

    def cost(z: float) -> float:
        return account.epsilon_of(r, {replace(event, z=scale * z): count})

    return least_noise(cost, target)


def least_noise(cost: Callable[[float], float], target: float) -> float:
    """Smallest z, to 6 digits, with (1 - 2e-4) target <= cost(z) <= target, for a decreasing function.

    Secant steps between the logarithms of z and cost, kept within a bracket. Where the cost jumps over this
    range: z after the jump.

    Args:
        cost: epsilon of each z.
        target: epsilon.

    Raises:
        PrivacyError: no z within the range of `privacy.z` costs so little, or so much.

    >>> least_noise(lambda z: 3.0 / z**2, 1.0)
    1.73214
    """
    costly: tuple[float, float] | None = None  # (z, cost) above the target
    enough: tuple[float, float] | None = None  # and at most the target
    z, last = 1.0, None
    for _ in range(200):
        found = cost(z)
        if (1.0 - _CLOSE) * target <= found <= target:
            return z
        here = z, found
        costly, enough = (here, enough) if found > target else (costly, here)
        if enough is not None and enough[0] <= _RANGE[0]:
            raise PrivacyError(
                f"epsilon {shown_epsilon(target)} is more than noise of z = {z:g} costs"
            )
        if (costly is not None and costly[0] >= _RANGE[1]) or z > _MOST_Z:
            raise PrivacyError(f"no noise multiplier gives epsilon {shown_epsilon(target)}")
        if costly and enough and enough[0] <= costly[0] * (1.0 + 3e-6):
            return enough[0]  # the cost jumps
        z = _next(costly, enough, here, last, (1.0 - _CLOSE / 2.0) * target)
        last = here
    raise PrivacyError(f"no noise multiplier was found for epsilon {shown_epsilon(target)}")


_Point = tuple[float, float]


def _next(
    costly: _Point | None, enough: _Point | None, here: _Point, last: _Point | None, aim: float
) -> float:
    """The next z of `least_noise`, of 6 digits."""
    slope = -1.0  # of ln cost over ln z
    known = 0.0 < here[1] < math.inf
    if known and last is not None and 0.0 < last[1] < math.inf and last[1] != here[1]:
        slope = min(math.log(here[1] / last[1]) / math.log(here[0] / last[0]), -0.05)
    step = math.log(aim / here[1]) / slope if known else 4.0 * (1 if here[1] > aim else -1)
    z = here[0] * math.exp(min(max(step, -math.log(4.0)), math.log(4.0)))
    low = costly[0] if costly else _RANGE[0]
    high = enough[0] if enough else _RANGE[1]
    if costly and enough and not low < z < high:
        z = math.sqrt(low * high)
    z = float(f"{min(max(z, low), high):.6g}")
    if costly and enough and z in (low, high):  # neighbours on the grid of 6 digits, or close to it
        z = (low + high) / 2.0
    return z
