"""Draw the README's picture: return of DPPG against epsilon, a panel for each task.

    python scripts/plot_small_epsilon.py

From the items outputs/paper/dppg/small_epsilon and gap. Runs of a task with the same number of steps are one
line. Dotted: without privacy, and before training.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from results_blocks.gap import ITEM as OTHERS
from results_blocks.small_epsilon import ITEM, rounds_of, users_of
from results_blocks.store import STORE, TASKS, finals, stored

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.reporting.runs import number
from privrl_bench.reporting.style import (
    DASHES,
    REFERENCE,
    Mark,
    dots,
    epsilon_axis,
    figure,
    legend,
    level,
    looks,
)

PATH = STORE / ITEM / "figure.svg"


Point = tuple[float, float, float]  # epsilon, mean, half width of the 95 % interval


def lines(env: str) -> list[list[Point]]:
    """Points of a task, a line for each number of steps; of several splits at an epsilon the best."""
    groups: dict[tuple[int, float, int, int], list[float]] = {}
    for run in stored(ITEM):
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


def main() -> None:
    """Draw the picture."""
    tasks = [env for env in TASKS if sum(map(len, lines(env))) > 1 or others(env, "dppg")]
    private, ppo = looks([Mark("dppg"), Mark("ppo", status="none")])
    with figure(PATH, len(tasks), row_height=1.2) as places:
        for axes, env in zip(places, tasks, strict=True):
            axes.set_xscale("log")
            for line in lines(env):
                epsilon, mean, half = (np.array(column) for column in zip(*line, strict=True))
                dots(axes, private, "DPPG, formal", epsilon, mean, (mean - half, mean + half))
            epsilon_axis(axes, [0.1, 10.0], "epsilon")
            for look, label, values in (
                (private, "DPPG without noise", others(env, "dppg")),
                (ppo, "PPO, not private", others(env, "ppo")),
                (REFERENCE, "before training", begins(env)),
            ):
                if values:
                    level(axes, replace(look, dash=DASHES["none"]), label, float(np.mean(values)))
            axes.set_ylabel("return")
            axes.set_title(TASKS[env])
        legend(places)
    print(PATH)


def others(env: str, algo: str) -> list[float]:
    """Returns at the end of the runs without privacy."""
    return finals([run for run in stored(OTHERS) if (run.env, run.algo) == (env, algo)])


def begins(env: str) -> list[float]:
    """Returns of the initial policies, before any data."""
    return [float(run.curve()[1][0]) for run in stored(ITEM) if run.env == env]


if __name__ == "__main__":
    main()
