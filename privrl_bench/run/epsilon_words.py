"""The size of an epsilon, in words."""

from __future__ import annotations

import math

from privrl_bench.metrics import shown_epsilon

LITTLE = 10.0  # above it the bound on the odds, e^10 = 22,026, excludes almost nothing
WARN = 20.0  # above it a plan has a warning


def meaning(epsilon: float, delta: float) -> str:
    """Return what an epsilon bounds; empty where there is no bound.

    >>> meaning(1.0, 1e-5).partition("odds ")[2]
    'about one unit by at most e^1 = 2.72'
    """
    if not epsilon < math.inf:
        return ""
    shown = shown_epsilon(epsilon)
    if epsilon > LITTLE:
        return (
            f"releases may change an adversary's odds about one unit by up to e^{shown}: above e^{LITTLE:g} = "
            f"{math.exp(LITTLE):,.0f} such a bound excludes almost nothing"
        )
    factor = shown_epsilon(math.exp(epsilon), 3)  # rounded up, too
    return (
        f"apart from a chance of delta = {delta:g}, releases change an adversary's odds about one unit "
        f"by at most e^{shown} = {factor}"
    )


def again(rounds: int) -> str:
    """Return that so many rounds were released more than once.

    >>> again(1)
    '1 round was released again after an interruption, and every release counts'
    """
    what = "1 round was" if rounds == 1 else f"{rounds} rounds were"
    return f"{what} released again after an interruption, and every release counts"


def warning(epsilon: float) -> str:
    """Return a warning about an epsilon that is finite and too large to mean much; empty for others.

    >>> warning(20.0), warning(math.inf)
    ('', '')
    """
    if not WARN < epsilon < math.inf:
        return ""
    return (
        f"epsilon {shown_epsilon(epsilon)} is above {WARN:g}: as a bound it excludes almost nothing"
    )
