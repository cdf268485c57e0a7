"""The README's table: one row for each task, at an epsilon that means something."""

from __future__ import annotations

from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import compact
from results_blocks.gap import ITEM as GAP
from results_blocks.small_epsilon import ITEM, users_of
from results_blocks.store import LARGE, TASKS, block, finals, spent, spread, steps, stored

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
        line.append(spread(finals(runs), digits))
        lines.append([*line, _ppo(env, runs, digits)])
    head = ["task", "epsilon", "users of a run", "steps", "seeds", "return"]
    return compact([*head, "PPO"], lines)


def _ppo(env: str, private: list[Run], digits: int) -> str:
    """PPO, with its steps where they are fewer than those of the private runs."""
    runs = [run for run in stored(GAP) if (run.env, run.algo) == (env, "ppo")]
    runs = runs or [run for run in stored("dppg/table1") if (run.env, run.algo) == (env, "ppo")]
    taken, wanted = (number(some[0].summary["steps"]) for some in (runs, private))
    fewer = f" ({steps(runs)} steps)" if taken < 0.95 * wanted else ""
    return f"{spread(finals(runs), digits)}{fewer}"
