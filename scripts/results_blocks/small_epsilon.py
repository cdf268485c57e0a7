"""DPPG at small epsilon: every environment, with the users and steps of a run."""

from __future__ import annotations

import re
from itertools import groupby

from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import compact
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
    z_of,
)

ITEM = "dppg/small_epsilon"


def users_of(run: Run) -> int:
    """Users of the whole run: its steps over T, which the unit of its guarantee names."""
    unit = str(run.summary["guarantee"]["unit"])
    found = re.search(r"(\d+) steps from a reset, used once", unit)
    if found is None:
        raise ValueError(f"unit without a number of steps: {unit}")
    return round(number(run.summary["steps"]) / int(found[1]))


def _order(run: Run) -> tuple[int, float, int]:
    return list(TASKS).index(run.env), number(run.summary["epsilon"]), users_of(run)


@block(ITEM)
def _small_epsilon() -> str:
    lines = []
    for (at, _, users), group in groupby(sorted(stored(ITEM), key=_order), key=_order):
        runs = list(group)
        values, env = finals(runs), list(TASKS)[at]
        digits = 0 if env in LARGE else 1
        line = [TASKS[env], spent(runs), z_of(runs), f"{users:,}", steps(runs), str(len(runs))]
        line += [spread(values, digits), f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"]
        lines.append([*line, runs[0].guarantee_status])
    head = ["task", "epsilon", "z", "users of a run", "steps", "seeds"]
    return compact(
        [*head, "return ± 95 % interval over seeds", "min", "max", "status"], without_repeats(lines)
    )
