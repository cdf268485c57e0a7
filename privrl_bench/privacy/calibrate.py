"""From a budget to a number of rounds, or to a noise multiplier."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from privrl_bench.errors import PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accountant import ReleaseEvent, epsilon
from privrl_bench.privacy.gate import Gate

_LEAST_Z, _MOST_Z = 1e-3, 1e5


def rounds_for(
    budget: float, event: ReleaseEvent, delta: float, accountant: str = "pld", most: int = 10**7
) -> int:
    """Largest number of releases like `event`, all about one user, that costs at most `budget`; 0: none.

    >>> rounds_for(8.0, ReleaseEvent("gaussian", 1.0, "zero_out"), 1e-5)
    2
    """

    def fits(count: int) -> bool:
        return epsilon(Counter({event: count}), delta, accountant) <= budget

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def z_for(
    budget: float,
    event: Callable[[float], ReleaseEvent],
    count: int,
    delta: float,
    accountant: str = "pld",
    digits: int = 4,
) -> float:
    """Smallest z, to some digits and rounded up, for which `count` releases `event(z)` cost at most `budget`.

    Raises PrivacyError when no z up to 100,000 does.

    >>> z_for(1.0, lambda z: ReleaseEvent("gaussian", z, "zero_out"), 1, 1e-5)
    3.731
    """

    def fits(z: float) -> bool:
        return epsilon(Counter({event(z): count}), delta, accountant) <= budget

    low, high = 0.25, 1.0
    while low > _LEAST_Z and fits(low):  # not at once to the end: small z take long
        low, high = low / 4.0, low
    while not fits(high):
        low, high = high, 4.0 * high
        if high > _MOST_Z:
            raise PrivacyError(
                f"no noise multiplier gives epsilon {shown_epsilon(budget)} after {count} releases"
            )
    while high / low > 1.0 + 0.1**digits / 10.0:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - digits + 1)
    z = round(math.ceil(high / unit - 1e-3) * unit, 12)
    while not fits(z):  # what is reported is what was checked
        z = round(z + unit, 12)
    return z


def affordable(plan: Gate, r: int, budget: float) -> int:
    """How many of the planned rounds of replica r cost at most `budget`: fixed in advance, public."""
    config = plan.configs[r]
    if plan.participation is None:
        return rounds_for(budget, plan.event(r), config.delta, config.accountant, plan.rounds)
    return plan.rounds if plan.planned_epsilon(r) <= budget else 0


def needed_z(plan: Gate, r: int, budget: float) -> float:
    """Smallest z with which all planned rounds of replica r would cost at most `budget`, or PrivacyError.

    To 4 digits; to 2 for Poisson cohorts, whose z are found without the cut of large cohorts, which is fast,
    and then checked with it.
    """
    config, event = plan.configs[r], plan.event(r)
    count = min(plan.participation or plan.rounds, plan.rounds)
    if config.sampling == "uniform_single_user":
        return z_for(
            budget, lambda z: replace(event, z=z), count, config.delta, config.accountant, 3
        )
    if config.sampling == "poisson":
        uncut = replace(event, population=None, cap=None)
        z = z_for(budget, lambda z: replace(uncut, z=z), count, config.delta, digits=2)
        while epsilon(Counter({replace(event, z=z): count}), config.delta) > budget:
            z = float(f"{1.01 * z:.4g}")
        return z
    scale = event.z / config.z if config.z else 1.0
    return z_for(
        budget,
        lambda z: replace(event, z=scale * z),
        count,
        config.delta,
        config.accountant,
    )
