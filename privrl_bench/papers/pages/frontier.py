"""What the measured frontier predicts, and how far runs that did not make it are from its predictions."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

import numpy as np

from privrl_bench.composition.compose import compose
from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers.frontier_figure import EPSILONS, USERS, z_of_release
from privrl_bench.papers.pages.small_epsilon import users_of
from privrl_bench.papers.pages.store import (
    STORE,
    TASKS,
    block,
    finals,
    spent,
    stored,
    without_repeats,
)
from privrl_bench.reporting.frontier import Point, best, points, predict, rounds_by_rule
from privrl_bench.reporting.runs import Run, flatten, number
from privrl_bench.reporting.table_writer import compact

ITEM = "dppg/frontier"


@cache
def measured(env: str) -> tuple[Point, ...]:
    """The points of an environment with today's default settings."""
    settings = dict(flatten(asdict(compose(["algo=dppg", f"env={env}"]))))
    return tuple(points("dppg", env, settings, STORE))


@cache
def environments() -> list[str]:
    """Those with measured runs of the default values at several noises, in the order of the tables."""
    return [env for env in TASKS if len({one.noise for one in measured(env)} - {0.0}) > 1]


@block(ITEM)
def _frontier() -> str:
    lines = []
    for env in environments():
        for users in USERS:
            cells = []
            for epsilon in EPSILONS:
                one = best(measured(env), users, z_of_release(epsilon))
                cells.append("-" if one is None else f"{one.mean:.0f} ({one.rounds})")
            lines.append([TASKS[env], f"{users:,}", *cells])
    head = ["task", "users", *(f"epsilon {shown_epsilon(one)}" for one in EPSILONS)]
    return compact(head, without_repeats(lines))


@block("dppg/split_rule")
def _rule() -> str:
    lines = []
    for env in environments():
        if len({one.rounds for one in measured(env)}) == 1:
            continue  # nothing to choose from
        lost = regrets(env)
        lines.append([TASKS[env], str(len(lost)), f"{np.mean(lost):.1f}", f"{max(lost):.1f}"])
    return compact(["task", "users and epsilons", "mean return lost", "most"], lines)


def regrets(env: str) -> list[float]:
    """Return of the best split less that of the rule, for 1,000 to 1,000,000 users and every epsilon."""
    found, clip = [], compose(["algo=dppg", f"env={env}"]).privacy.clip
    choices = sorted({one.rounds for one in measured(env)})
    for users in np.geomspace(1e3, 1e6, 13).astype(int).tolist():
        for z in map(z_of_release, EPSILONS):
            most = best(measured(env), users, z)
            ruled = predict(measured(env), users, z, rounds_by_rule(choices, users, z, clip))
            if most is not None and ruled is not None:
                found.append(most.mean - ruled.mean)
    return found


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


@block("dppg/preview_check")
def _previews() -> str:
    groups: dict[tuple[float, bool], list[Run]] = {}
    for run in stored("dppg/preview_check"):
        groups.setdefault((float(run.z or 0.0), run.guarantee_status != "none"), []).append(run)
    lines = []
    for (z, real), runs in sorted(groups.items()):
        what = "256 users a round" if real else "64 users a round, the noise of 256"
        values = finals(runs)
        spent_or_none = spent(runs) if real else "-"
        cells = [f"{np.mean(values):.1f}", f"{min(values):.1f}", f"{max(values):.1f}"]
        lines.append([f"{z:g}", what, spent_or_none, str(len(runs)), *cells])
    return compact(["z", "cohort", "epsilon", "seeds", "mean return", "min", "max"], lines)
