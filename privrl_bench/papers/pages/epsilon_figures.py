"""Figures of DPPG against epsilon, from the items small_epsilon, gap and frontier of outputs/paper/dppg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.papers.pages.dppg import (
    DELTA,
    EPSILONS,
    SMALL,
    USERS,
    noiseless,
    ppo,
    z_of_release,
)
from privrl_bench.papers.pages.store import TASKS, finals, rounds_of, stored, users_of
from privrl_bench.reporting.frontier import Point, best
from privrl_bench.reporting.runs import number
from privrl_bench.reporting.style import (
    MARKERS,
    REFERENCE,
    LineMark,
    dots,
    epsilon_axis,
    figure,
    legend,
    level,
    lightness,
    looks,
    returns_of,
    shade,
)

Dot = tuple[float, float, float]  # epsilon, mean, half width of the 95 % interval


def lines(env: str) -> list[list[Dot]]:
    """Points of a task, a line for each number of steps; of several splits at an epsilon the best."""
    groups: dict[tuple[int, float, int, int], list[float]] = {}
    for run in stored(SMALL):
        if run.env == env:
            steps = round(number(run.summary["steps"]), -5)  # whole rounds differ a little
            epsilon = number(run.summary["epsilon"])
            key = (int(steps), epsilon, rounds_of(run), users_of(run))
            groups.setdefault(key, []).append(run.final_value)
    best: dict[int, dict[float, list[float]]] = {}
    for (steps, epsilon, *_), values in sorted(groups.items(), key=lambda one: fmean(one[1])):
        best.setdefault(steps, {})[epsilon] = values
    return [
        [(epsilon, *mean_ci(values)) for epsilon, values in sorted(line.items())]
        for _, line in sorted(best.items())
    ]


def draw_small(path: Path) -> Path:
    """Draw return against epsilon, a panel for each task: the README's figure. Returns its path.

    Runs of a task with the same number of steps are one line. Dotted: without privacy, and before training.
    """
    tasks = [env for env in TASKS if sum(map(len, lines(env))) > 1 or finals(noiseless(env))]
    marks = [LineMark("dppg"), LineMark("ppo", status="none"), LineMark("dppg", status="none")]
    private, not_private, without = looks(marks)
    with figure(path, len(tasks), row_height=1.2) as places:
        for axes, env in zip(places, tasks, strict=True):
            axes.set_xscale("log")
            returns_of(axes, env)
            for line in lines(env):
                epsilon, mean, half = (np.array(column) for column in zip(*line, strict=True))
                dots(axes, private, "DPPG, formal", epsilon, mean, (mean - half, mean + half))
            epsilon_axis(axes, [0.1, 10.0], "epsilon")
            for look, label, values in (
                (without, "DPPG without noise", finals(noiseless(env))),
                (not_private, "PPO, not private", of_ppo(env)),
                (REFERENCE, "before training", begins(env)),
            ):
                if values:
                    level(axes, look, label, float(np.mean(values)))
            axes.set_ylabel("return")
            axes.set_title(TASKS[env])
        legend(places)
    return path


def of_ppo(env: str) -> list[float]:
    """Final returns of PPO's runs with as many steps as DPPG's runs without noise, or nearly as many."""
    groups = ppo(env, noiseless(env) or [run for run in stored(SMALL) if run.env == env])
    return finals(groups[0]) if groups else []


def begins(env: str) -> list[float]:
    """Returns of the initial policies, before any data."""
    return [float(run.curve()[1][0]) for run in stored(SMALL) if run.env == env]


# --- the measured frontier


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
