"""The README's figure: return of DPPG against epsilon, a panel for each task.

From the items outputs/paper/dppg/small_epsilon and gap. Runs of a task with the same number of steps are one
line. Dotted: without privacy, and before training.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.papers.pages.dppg import SMALL, noiseless, ppo
from privrl_bench.papers.pages.store import TASKS, finals, rounds_of, stored, users_of
from privrl_bench.reporting.runs import number
from privrl_bench.reporting.style import (
    REFERENCE,
    LineMark,
    dots,
    epsilon_axis,
    figure,
    legend,
    level,
    looks,
    returns_of,
)

Point = tuple[float, float, float]  # epsilon, mean, half width of the 95 % interval


def lines(env: str) -> list[list[Point]]:
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


def draw(path: Path) -> Path:
    """Draw the figure. Returns its path."""
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
