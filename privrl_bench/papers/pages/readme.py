"""The README's table: one row for each task, at an epsilon that means something."""

from __future__ import annotations

from functools import partial

from privrl_bench.papers.pages.gap import ppo, returns_of
from privrl_bench.papers.pages.small_epsilon import ITEM, users_of
from privrl_bench.papers.pages.store import (
    LARGE,
    TASKS,
    block,
    finals,
    spent,
    spread,
    steps,
    stored,
)
from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import compact

# Task and the largest epsilon of its row: the smallest with which the task is solved, or the one asked for.
ROWS = {
    **{"cartpole": 0.14, "acrobot": 1.0, "dosing0": 1.0},
    **{"pendulum": 4.4, "hopper": 4.4, "halfcheetah": 4.4},
}


def _row(env: str) -> list[Run]:
    """The runs of a task at the largest epsilon that its row allows."""
    runs = [
        run
        for run in stored(ITEM)
        if run.env == env and number(run.summary["epsilon"]) <= ROWS[env] + 1e-6
    ]
    most = max(number(run.summary["epsilon"]) for run in runs)
    return [run for run in runs if number(run.summary["epsilon"]) == most]


@block("readme")
def _readme() -> str:
    lines = []
    for env in ROWS:
        runs = _row(env)
        digits = 0 if env in LARGE else 1
        line = [TASKS[env], spent(runs), f"{users_of(runs[0]):,}", steps(runs), str(len(runs))]
        show = partial(_returns, digits=digits)
        lines.append([*line, show(runs), returns_of(ppo(env, runs), runs, show)])
    head = ["task", "epsilon", "users of a run", "steps", "seeds", "return"]
    return compact([*head, "PPO"], lines)


def _returns(runs: list[Run], digits: int) -> str:
    return spread(finals(runs), digits)
