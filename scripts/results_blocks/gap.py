"""The gap between DPPG and PPO at equal steps: the part of the learner and the part of the noise."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import compact
from results_blocks.small_epsilon import ITEM as PRIVATE
from results_blocks.small_epsilon import users_of
from results_blocks.store import (
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

ITEM = "dppg/gap"


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
        ppo = [run for run in others if (run.env, run.algo) == (env, "ppo")]
        private = [r for r in stored(PRIVATE) if r.env == env and _same_settings(r, noiseless)]
        if not (noiseless and ppo):
            continue
        digits = 0 if env in LARGE else 1
        reached, without = np.mean(finals(ppo)), np.mean(finals(noiseless))
        by_epsilon = sorted(private, key=lambda run: -number(run.summary["epsilon"]))
        for _, group in groupby(by_epsilon, key=lambda run: number(run.summary["epsilon"])):
            runs = list(group)
            mean = np.mean(finals(runs))
            parts = [reached - mean, reached - without, without - mean]
            line = [TASKS[env], steps(runs), _ppo(ppo, runs, digits), _counted(noiseless, digits)]
            line += [spent(runs), _counted(runs, digits)]
            lines.append([*line, *[f"{x:.{digits}f}" for x in parts]])
    head = ["task", "steps", "PPO", "DPPG, z = 0", "epsilon", "DPPG"]
    return compact([*head, "gap", "learner", "noise"], without_repeats(lines))


def _counted(runs: list[Run], digits: int) -> str:
    return f"{spread(finals(runs), digits)} ({len(runs)})"


def _ppo(ppo: list[Run], private: list[Run], digits: int) -> str:
    """PPO's returns, with its steps where they are fewer than those of the private runs."""
    fewer = _steps(ppo[0]) < 0.95 * _steps(private[0])
    return _counted(ppo, digits) + (f", {steps(ppo)} steps" if fewer else "")
