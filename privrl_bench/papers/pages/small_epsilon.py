"""DPPG at small epsilon: every environment, with the users and steps of a run."""

from __future__ import annotations

import re
from itertools import groupby

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
    z_of,
)
from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import compact

ITEM = "dppg/small_epsilon"


def users_of(run: Run) -> int:
    """Users of the whole run: its steps over T, which the unit of its guarantee names."""
    unit = str(run.summary["guarantee"]["unit"])
    found = re.search(r"(\d+) steps from a reset, used once", unit)
    if found is None:
        raise ValueError(f"unit without a number of steps: {unit}")
    return round(number(run.summary["steps"]) / int(found[1]))


def rounds_of(run: Run) -> int:
    """Rounds of the run."""
    return int(run.summary["ledger"]["rounds"])


def _order(run: Run) -> tuple[int, float, int, int]:
    epsilon = number(run.summary["epsilon"])
    return list(TASKS).index(run.env), epsilon, users_of(run), -rounds_of(run)


@block(ITEM)
def _small_epsilon() -> str:
    lines = []
    for (at, _, users, _), group in groupby(sorted(stored(ITEM), key=_order), key=_order):
        runs = list(group)
        values, env = finals(runs), list(TASKS)[at]
        digits = 0 if env in LARGE else 1
        line = [TASKS[env], spent(runs), z_of(runs), f"{users:,}", f"{rounds_of(runs[0]):,}"]
        line += [steps(runs), str(len(runs))]
        line += [spread(values, digits), f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"]
        lines.append([*line, runs[0].guarantee_status])
    head = ["task", "epsilon", "z", "users of a run", "rounds", "steps", "seeds"]
    return compact(
        [*head, "return ± 95 % interval over seeds", "min", "max", "status"], without_repeats(lines)
    )
