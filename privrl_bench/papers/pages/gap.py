"""The gap between DPPG and PPO at equal steps: the part of the learner and the part of the noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby

import numpy as np
from scipy.stats import ttest_ind

from privrl_bench.papers.pages.small_epsilon import ITEM as PRIVATE
from privrl_bench.papers.pages.small_epsilon import users_of
from privrl_bench.papers.pages.store import (
    LARGE,
    TASKS,
    block,
    finals,
    spent,
    spread,
    steps,
    stored,
    without_repeats,
)
from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import compact

ITEM = "dppg/gap"
# Epsilons of the README's table, and of its row of Dosing for the other task. CartPole has 500 in every run.
NOISE = {
    **{"acrobot": 1.0, "dosing0": 1.0, "dosing1": 1.0},
    **{"pendulum": 4.378, "hopper": 4.378, "halfcheetah": 4.378},
}
_SAME = 0.01  # relative difference: rounds of another size end at another step


def ppo(env: str, private: list[Run]) -> list[list[Run]]:
    """PPO's runs on a task, those of the same number of steps together, nearest to the private runs first."""
    runs = sorted((r for r in stored(ITEM) if (r.env, r.algo) == (env, "ppo")), key=_steps)
    groups = [list(group) for _, group in groupby(runs, key=_steps)]
    return sorted(groups, key=lambda group: abs(_steps(group[0]) - _steps(private[0])))


def returns_of(
    groups: list[list[Run]], private: list[Run], show: Callable[[list[Run]], str]
) -> str:
    """Each group's returns, with its steps where they are not those of the private runs."""
    cells = []
    for group in groups:
        equal = abs(_steps(group[0]) / _steps(private[0]) - 1) < _SAME
        cells.append(show(group) + ("" if equal else f", {steps(group)} steps"))
    return "; ".join(cells)


def _steps(run: Run) -> float:
    return number(run.summary["steps"])


def _same_settings(run: Run, reference: list[Run]) -> bool:
    """Whether a private run has the users and rounds of the runs without noise."""
    return bool(reference) and _sizes(run) == _sizes(reference[0])


def _sizes(run: Run) -> tuple[int, int]:
    return users_of(run), int(run.summary["ledger"]["rounds"])


@block(ITEM)
def _gap() -> str:
    others = stored(ITEM)
    lines = []
    for env in TASKS:
        noiseless = [run for run in others if (run.env, run.algo) == (env, "dppg")]
        private = [r for r in stored(PRIVATE) if r.env == env and _same_settings(r, noiseless)]
        if not private:
            continue
        digits, pooled = 0 if env in LARGE else 1, ppo(env, noiseless)
        show = partial(_counted, digits=digits)
        reached, without = np.mean(finals(pooled[0])), np.mean(finals(noiseless))
        by_epsilon = sorted(private, key=lambda run: -number(run.summary["epsilon"]))
        for _, group in groupby(by_epsilon, key=lambda run: number(run.summary["epsilon"])):
            runs = list(group)
            mean = np.mean(finals(runs))
            parts = [reached - mean, reached - without, without - mean]
            line = [TASKS[env], steps(runs), returns_of(pooled, runs, show), show(noiseless)]
            line += [spent(runs), show(runs)]
            lines.append([*line, *[f"{x:.{digits}f}" for x in parts]])
    head = ["task", "steps", "PPO", "DPPG, z = 0", "epsilon", "DPPG"]
    return compact([*head, "gap", "learner", "noise"], without_repeats(lines))


@block("dppg/noise")
def _noise() -> str:
    parts = []
    for env, epsilon in NOISE.items():
        noiseless = [run for run in stored(ITEM) if (run.env, run.algo) == (env, "dppg")]
        private = [
            run
            for run in stored(PRIVATE)
            if run.env == env
            and _same_settings(run, noiseless)
            and abs(number(run.summary["epsilon"]) - epsilon) < _SAME
        ]
        low, high = ttest_ind(
            finals(noiseless), finals(private), equal_var=False
        ).confidence_interval()
        digits = 0 if env in LARGE else 1
        cost = np.mean(finals(noiseless)) - np.mean(finals(private))
        shown = f"{cost:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"
        parts.append(f"{TASKS[env]} {shown} at {spent(private)}")
    return ", ".join(parts)


def _counted(runs: list[Run], digits: int) -> str:
    return f"{spread(finals(runs), digits)} ({len(runs)})"
