"""What the measured frontier predicts, and how far runs that did not make it are from its predictions."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

import numpy as np

from privrl_bench.config.compose import compose
from privrl_bench.reporting.frontier import Point, best, points, predict
from privrl_bench.reporting.frontier_figure import EPSILONS, USERS, z_of_release
from privrl_bench.reporting.runs import Run, flatten, number
from privrl_bench.reporting.table_writer import compact
from results_blocks.small_epsilon import users_of
from results_blocks.store import STORE, TASKS, block, finals, spent, stored, without_repeats

ITEM = "dppg/frontier"


@cache
def measured(env: str) -> tuple[Point, ...]:
    """The points of an environment with today's default settings."""
    settings = dict(flatten(asdict(compose(["algo=dppg", f"env={env}"]))))
    return tuple(points("dppg", env, settings, STORE))


@block(ITEM)
def _frontier() -> str:
    lines = []
    for env in sorted({run.env for run in stored(ITEM)}, key=list(TASKS).index):
        for users in USERS:
            cells = []
            for epsilon in EPSILONS:
                one = best(measured(env), users, z_of_release(epsilon))
                cells.append("-" if one is None else f"{one.mean:.0f} ({one.rounds})")
            lines.append([TASKS[env], f"{users:,}", *cells])
    head = ["task", "users", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    return compact(head, without_repeats(lines))


@block("dppg/frontier_check")
def _check() -> str:
    groups: dict[tuple[str, float, int, int], list[Run]] = {}
    for run in stored("dppg/frontier_check"):
        rounds = round(number(run.summary["ledger"]["rounds"]))
        key = (run.env, float(run.z or 0.0), users_of(run), rounds)
        groups.setdefault(key, []).append(run)
    lines = []
    for (env, z, users, rounds), runs in sorted(groups.items()):
        one, values = predict(measured(env), users, z, rounds), finals(runs)
        said = "-" if one is None else f"{one.mean:.1f} ({one.low:.1f} to {one.high:.1f})"
        found = f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
        lines.append(
            [TASKS[env], spent(runs), f"{users:,}", str(rounds), str(len(runs)), said, found]
        )
    head = ["task", "epsilon", "users", "rounds", "seeds", "predicted", "measured"]
    return compact(head, without_repeats(lines))
