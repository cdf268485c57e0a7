"""Blocks of the PriMORL paper, from runs.csv."""

from __future__ import annotations

import json
from itertools import groupby

from privrl_bench.papers.items import finished_runs
from privrl_bench.papers.pages.store import (
    STORE,
    TASKS,
    block,
    chosen,
    each,
    finals,
    paper_table,
    spent,
    spread,
    without_repeats,
    z_of,
)
from privrl_bench.reporting.results_store import read_trivial
from privrl_bench.reporting.table_writer import compact

_EVALUATED = "eval.episodes=50,eval.every=0,"


def score(value: float) -> float:
    """The paper's score of a return on Pendulum."""
    return (value + 1500) / 1.5


@block("primorl/table1")
def _primorl() -> str:
    table, lines = paper_table("primorl"), []
    runs = finished_runs(STORE / "primorl/table1", table)
    for cell in (cell for cell in table.cells if cell.env == "pendulum"):
        some = runs[cell.judged_by]
        label, _, epsilon = cell.label.partition(" (")
        noise = f", z = {z_of(some)}" if epsilon else ""
        mean, half = cell.paper
        ours = spread([score(value) for value in finals(some)], 0)
        cost = f" ({spent(some, 'epsilon_paper', 3)})" if epsilon else ""
        lines.append(
            [
                label + noise,
                f"{score(mean):.1f} ± {half / 1.5:.1f}",
                epsilon.rstrip(")") or "inf",
                ours,
                spent(some, digits=3) + cost,
                some[0].guarantee_status,
            ]
        )
    head = ["method", "paper", "epsilon", "ours", "epsilon (moments accountant)", "status"]
    return compact(head, lines)


@block("primorl/table1-trivial")
def _primorl_trivial() -> str:
    found = trivial_means("primorl/table1", "pendulum")
    nothing, random, rule = (
        f"{score(found[name]):.0f}" for name in ("do nothing", "random", "pump energy")
    )
    return (
        f"Doing nothing scores {nothing}, random actions {random}, a rule that pumps energy {rule}."
    )


def trivial_means(item: str, env: str) -> dict[str, float]:
    """Name of a policy that does not learn -> its mean return."""
    text = read_trivial(STORE / item)[env]
    return {one.partition("(")[2].rstrip(")"): float(one.split()[0]) for one in text.split("; ")}


@block("primorl/table1-dm_control")
def _dm_control() -> str:
    table, lines = paper_table("primorl"), []
    runs = finished_runs(STORE / "primorl/table1", table)
    cells = (c for c in table.cells if c.env != "pendulum" and runs[c.judged_by])
    for env, cells_of in groupby(cells, key=lambda cell: cell.env):
        trivial = trivial_means("primorl/table1", env)
        shown = [f"{trivial[name]:.0f}" for name in ("do nothing", "random")]
        for cell in cells_of:
            some = runs[cell.judged_by]
            label, _, theirs = cell.label.removeprefix("PriMORL ").partition(" (")
            noise = f", z = {z_of(some)}" if theirs else ""
            cost = f" ({spent(some, 'epsilon_paper', 3)})" if theirs else ""
            mean, half = cell.paper
            lines.append(
                [
                    TASKS[env],
                    label + noise,
                    f"{mean:.1f} ± {half:.1f}",
                    theirs.rstrip(")") or "inf",
                    f"{spread(finals(some), 0)} ({each(some)})",
                    spent(some, digits=3) + cost,
                    *shown,
                ]
            )
            shown = ["", ""]
    head = ["task", "method", "paper", "epsilon", "ours", "epsilon (moments accountant)"]
    return compact([*head, "do nothing", "random"], without_repeats(lines))


@block("primorl/mopo")
def _mopo() -> str:
    table = paper_table("primorl")
    runs = finished_runs(STORE / "primorl/table1", table)
    cells = (c for c in table.cells if c.label == "MOPO" and c.env != "pendulum")
    found = [(TASKS[cell.env], runs[cell.judged_by]) for cell in cells]
    return ", ".join(f"{task} {spread(finals(some), 0)} ({each(some)})" for task, some in found)


@block("primorl/table6")
def _halfcheetah() -> str:
    table, lines = paper_table("primorl", item="table6"), []
    runs = finished_runs(STORE / "primorl/table6", table)
    for cell in table.cells:
        some = runs[cell.judged_by]
        mean, half = cell.paper
        ours = ", ".join(f"{value:,.0f}" for value in finals(some))
        lines.append([cell.label, f"{mean:,.0f} ± {half:,.0f}", ours, spent(some, digits=2)])
    return compact(["method", "paper", "ours", "epsilon"], lines)


@block("primorl/table6-data")
def _halfcheetah_data() -> str:
    trivial = trivial_means("primorl/table6", "halfcheetah")
    cards = [STORE / f"primorl/data/halfcheetah-{one}-v0.json" for one in ("medium", "expert")]
    medium, better = (json.loads(card.read_text())["returns"]["quantiles"][3] for card in cards)
    nothing, random = (round(trivial[name]) for name in ("do nothing", "random"))
    data = f"Median returns {medium:,.0f} and {better:,.0f}"
    return f"{data}; doing nothing has {nothing}, random actions {random}."


@block("primorl/figk")
def _figk() -> str:
    found = []
    for users in (30_000, 10_000, 3_000):
        runs = chosen("primorl/figk", f"primorl/pendulum/z=0.5,data.users={users},")
        found.append(f"{users:,} {spread(finals(runs), 0)} at epsilon {spent(runs, digits=3)}")
    return f"{', '.join(found)} ({each(runs)})"


@block("primorl/fig4")
def _fig4() -> str:
    found = []
    for z in (0.35, 0.5, 0.8, 1.5, 3):
        runs = chosen("primorl/fig4", f"primorl/pendulum/z={z:g},")
        found.append(f"{z:g} {spread(finals(runs), 0)} at epsilon {spent(runs, digits=2)}")
    return ", ".join(found)


@block("primorl/cohorts")
def _cohorts() -> str:
    few, many = "1000 rounds of 30", "100 rounds of 300"
    groups = [
        ("29,700", few, "fig4", [f"z={z}," for z in ("0.5", "0.8", "1.5", "3")]),
        (
            "29,700",
            many,
            "fig4",
            [f"epsilon={e},{_EVALUATED}" for e in ("1", "0.31", "0.086", "0.05")],
        ),
        ("2,970", few, "figk", ["z=0.5,data.users=3000,"]),
        ("2,970", many, "figk", [f"epsilon=1,data.users=3000,{_EVALUATED}"]),
        ("297", "100 rounds of 150", "figk", ["z=0,data.users=300,"]),
    ]
    lines = []
    for users, split, item, starts in groups:
        for start in starts:
            runs = chosen(f"primorl/{item}", f"primorl/pendulum/{start}")
            values = finals(runs)
            extremes = [f"{min(values):.0f}", f"{max(values):.0f}"]
            cells = [spent(runs, digits=3), z_of(runs), str(len(runs)), spread(values, 0)]
            lines.append([f"{users} users, {split}", *cells, *extremes])
    head = ["private users, rounds", "epsilon", "z", "seeds", "return", "min", "max"]
    return compact(head, without_repeats(lines))
