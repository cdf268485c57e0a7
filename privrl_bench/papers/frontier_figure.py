"""The figure of a frontier: predicted return against the users of a run, and against epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privrl_bench.privacy.accounting.calibrate import z_for
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.reporting.frontier import Point, best
from privrl_bench.reporting.style import (
    MARKERS,
    REFERENCE,
    epsilon_axis,
    figure,
    legend,
    level,
    lightness,
    shade,
)

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
USERS = (1_000, 10_000, 100_000, 1_000_000)
DELTA = 1e-5


def z_of_release(epsilon: float, delta: float = DELTA) -> float:
    """Noise multiplier of a user's only release, under zero-out.

    >>> z_of_release(1.0)
    3.731
    """
    return z_for(
        epsilon, lambda z: ReleaseEvent("gaussian", z, "zero_out", sampling="fixed"), 1, delta
    )


def predicted(measured: Sequence[Point], users: int, epsilon: float) -> float:
    """Mean return of the best split of so many users; NaN: none was measured."""
    found = best(measured, users, z_of_release(epsilon))
    return math.nan if found is None else found.mean


def draw_frontier(
    measured: Sequence[Point], task: str, reference: float | None, path: Path
) -> None:
    """Draw return against users, a line for each epsilon, and against epsilon, a line for each number of users.

    Args:
        measured: points of one algorithm and environment.
        task: title.
        reference: return without privacy, a dashed line; None: not known.
        path: of the picture.
    """
    import numpy as np

    with figure(path, 2) as (by_users, by_epsilon):
        users = [round(10**exponent) for exponent in np.arange(3, 6.01, 0.125)]
        _lines(by_users, users, EPSILONS, lambda n, e: predicted(measured, n, e), "epsilon {:g}")
        by_users.set_xlabel("users of the run, each once")
        epsilons = list(np.geomspace(0.25, 16.0, 25))
        _lines(by_epsilon, epsilons, USERS, lambda e, n: predicted(measured, n, e), "{:,} users", 5)
        epsilon_axis(by_epsilon, epsilons, f"epsilon at delta {DELTA:g}")
        for one in (by_users, by_epsilon):
            if reference is not None:
                level(one, REFERENCE, "without privacy (z = 0)", reference)
            one.set_ylabel("predicted return")
            one.set_title(task)
        legend((by_users, by_epsilon))


def _lines(
    axes: Any, xs: Sequence[Any], lines: Sequence[Any], value: Any, label: str, first: int = 0
) -> None:
    """One line for each of `lines`, lighter from first to last, on a logarithmic axis; markers from `first`."""
    axes.set_xscale("log")
    for at, line in enumerate(lines):
        colour = shade("dppg", lightness(line, lines))
        drawn = {
            "color": colour,
            "marker": MARKERS[(at + first) % len(MARKERS)],
            "markevery": (at, 8),
        }
        axes.plot(xs, [value(x, line) for x in xs], **drawn, label=label.format(line))
