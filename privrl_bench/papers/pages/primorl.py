"""Blocks of the PriMORL paper, from runs.csv."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import groupby

from privrl_bench.papers.items import finished_runs, read_trivial
from privrl_bench.papers.pages.store import (
    BLOCKS,
    STORE,
    TASKS,
    Group,
    block,
    chosen,
    each,
    finals,
    paper_table,
    runs_table,
    seeds,
    spent,
    spread,
    status,
    theirs,
    without_repeats,
    z_of,
)
from privrl_bench.papers.paper_item import Cell
from privrl_bench.reporting.table_writer import compact

_EVALUATED = "eval.episodes=50,eval.every=0,"


def score(value: float) -> float:
    """The paper's score of a return on Pendulum."""
    return (value + 1500) / 1.5


@cache
def results() -> list[tuple[Cell, Group]]:
    """The cells of table 1 with our runs."""
    table = paper_table("primorl")
    runs = finished_runs(STORE / "primorl/table1", table)
    return [(cell, runs[cell.judged_by]) for cell in table.cells]


def trivial_means(env: str) -> dict[str, float]:
    """Name of a policy that does not learn -> its mean return."""
    text = read_trivial(STORE / "primorl/table1")[env]
    return {one.partition("(")[2].rstrip(")"): float(one.split()[0]) for one in text.split("; ")}


def _named(label: str, runs: Group) -> tuple[str, str, str]:
    """Method with its noise, the paper's epsilon, and ours with that of its accountant."""
    method, _, epsilon = label.partition(" (")
    if not epsilon:
        return method, "inf", spent(runs, digits=3)
    ours = f"{spent(runs, digits=3)} ({spent(runs, 'epsilon_paper', 3)})"
    return f"{method}, z = {z_of(runs)}", epsilon.rstrip(")"), ours


@block("primorl/table1")
def _primorl() -> str:
    lines = []
    for cell, runs in results():
        if cell.env == "pendulum":
            assert cell.paper is not None
            mean, half = cell.paper
            method, epsilon, ours = _named(cell.label, runs)
            values = spread([score(value) for value in finals(runs)], 0)
            shown = f"{score(mean):.1f} ± {half / 1.5:.1f}"
            lines.append([method, shown, epsilon, values, ours, status(runs)])
    head = ["method", "paper", "epsilon", "ours", "epsilon (moments accountant)", "status"]
    return compact(head, lines)


@block("primorl/table1-trivial")
def _primorl_trivial() -> str:
    found = trivial_means("pendulum")
    nothing, random, rule = (
        f"{score(found[name]):.0f}" for name in ("do nothing", "random", "pump energy")
    )
    return (
        f"Doing nothing scores {nothing}, random actions {random}, a rule that pumps energy {rule}."
    )


@block("primorl/table1-dm_control")
def _dm_control() -> str:
    lines = []
    for env, found in groupby(results(), key=lambda one: one[0].env):
        trivial = trivial_means(env)
        shown = [f"{trivial[name]:.0f}" for name in ("do nothing", "random")]
        for cell, runs in found if env != "pendulum" else ():
            if runs:
                method, epsilon, ours = _named(cell.label.removeprefix("PriMORL "), runs)
                values = f"{spread(finals(runs), 0)} ({each(runs)})"
                lines.append([TASKS[env], method, theirs(cell), epsilon, values, ours, *shown])
                shown = ["", ""]
    head = ["task", "method", "paper", "epsilon", "ours", "epsilon (moments accountant)"]
    return compact([*head, "do nothing", "random"], without_repeats(lines))


@block("primorl/mopo")
def _mopo() -> str:
    found = ((c, runs) for c, runs in results() if c.label == "MOPO" and c.env != "pendulum")
    return ", ".join(
        f"{TASKS[cell.env]} {spread(finals(runs), 0)} ({each(runs)})" for cell, runs in found
    )


def _listed(item: str, values: tuple[float, ...], words: str, label: str, digits: int) -> str:
    """Returns and epsilons on Pendulum for values of a key, as a sentence; in `{}` stands the value."""
    found = {x: chosen(item, f"primorl/pendulum/{words.format(x)}") for x in values}
    return ", ".join(
        f"{label.format(x)} {spread(finals(runs), 0)} at epsilon {spent(runs, digits=digits)}"
        for x, runs in found.items()
    )


@block("primorl/figk")
def _figk() -> str:
    words = "z=0.5,data.users={},"
    last = chosen("primorl/figk", f"primorl/pendulum/{words.format(3000)}")
    return f"{_listed('primorl/figk', (30_000, 10_000, 3_000), words, '{:,}', 3)} ({each(last)})"


BLOCKS["primorl/fig4"] = partial(
    _listed, "primorl/fig4", (0.35, 0.5, 0.8, 1.5, 3), "z={:g},", "{:g}", 2
)


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
    rows = [
        (f"{users} users, {split}", chosen(f"primorl/{item}", f"primorl/pendulum/{start}"))
        for users, split, item, starts in groups
        for start in starts
    ]
    columns: dict[str, Callable[[Group], str]] = {
        "epsilon": lambda runs: spent(runs, digits=3),
        "z": z_of,
        "seeds": seeds,
        "return": lambda runs: spread(finals(runs), 0),
        "min": lambda runs: f"{min(finals(runs)):.0f}",
        "max": lambda runs: f"{max(finals(runs)):.0f}",
    }
    return runs_table("private users, rounds", rows, columns)
