"""Reads the results store for the blocks, and writes numbers as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers import items as papers
from privrl_bench.papers.paper_item import Cell, PaperTable
from privrl_bench.reporting.run_loader import read_results, stores
from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.style import NAMES
from privrl_bench.reporting.table_writer import ABSENT, compact, parsed

ROOT = Path(__file__).resolve().parents[3]
STORE = ROOT / "outputs" / "paper"
BLOCKS: dict[str, Callable[[], str]] = {}
Group = Sequence[Run]  # runs that differ in the seed
TASKS = NAMES
LARGE = ("hopper", "halfcheetah", "walker2d", "ant")  # returns in the thousands: no decimals


def block(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register the function of a block."""

    def register(function: Callable[[], str]) -> Callable[[], str]:
        BLOCKS[name] = function
        return function

    return register


# --- reading the store


@cache
def stored(item: str) -> tuple[Run, ...]:
    """Every run of an item."""
    return tuple(read_results(STORE / item))


def chosen(item: str, start: str) -> list[Run]:
    """The runs of an item whose key begins so.

    Raises:
        ValueError: There is none.
    """
    runs = [
        run
        for run in stored(item)
        if run.folder.relative_to(STORE / item).as_posix().startswith(start)
    ]
    if not runs:
        raise ValueError(f"{item} has no run {start}...")
    return sorted(runs, key=lambda run: run.seed or 0)


@cache
def paper_table(paper: str, scale: str = "paper", item: str = "table1") -> PaperTable:
    """A table of a paper at a scale."""
    table = papers.paper(paper).item(item, scale)
    assert isinstance(table, PaperTable)
    return table


# --- text of numbers


def core_hours(item: str) -> str:
    """Core-hours of an item, from its rows: runs that were trained in one program share its time."""
    each = [(number(run.summary["wall_seconds"]), run.provenance) for run in stored(item)]
    return f"{sum(time / made['trained_together'] for time, made in each) / 3600:.1f}"


_items = [folder.relative_to(STORE).as_posix() for folder in stores(STORE)]
BLOCKS |= {f"hours/{one}": partial(core_hours, one) for one in _items}


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and half width of the 95 % interval."""
    return "{:.{d}f} ± {:.{d}f}".format(*mean_ci(values), d=digits)


def theirs(cell: Cell, digits: int = 1) -> str:
    """A number of a paper's table, `-` if it has none."""
    return "{:.{d}f} ± {:.{d}f}".format(*cell.paper, d=digits) if cell.paper else ABSENT


def finals(runs: Iterable[Run]) -> list[float]:
    """Final values."""
    return [run.final_value for run in runs]


def rounds_of(run: Run) -> int:
    """Rounds of a run."""
    return int(run.summary["ledger"]["rounds"])


def users_of(run: Run) -> int:
    """Users of the whole run: its steps over T, which the unit of its guarantee names."""
    unit = str(run.summary["guarantee"]["unit"])
    found = re.search(r"(\d+) steps from a reset, used once", unit)
    if found is None:
        raise ValueError(f"unit without a number of steps: {unit}")
    return round(number(run.summary["steps"]) / int(found[1]))


# --- columns: text of the runs of one row


def users(runs: Group) -> str:
    """Number of users who are used once, or of whom each round draws some; `-` of other runs."""
    if drawn := runs[0].config["privacy"].get("population"):
        return f"{drawn:,}"
    unit = str(runs[0].summary["guarantee"]["unit"])
    return f"{users_of(runs[0]):,}" if unit.endswith("used once") else ABSENT


def seeds(runs: Group) -> str:
    """Number of runs."""
    return str(len(runs))


def digits_of(runs: Group) -> int:
    """Decimals of returns of the runs' task."""
    return 0 if runs[0].env in LARGE else 1


def interval(runs: Group) -> str:
    """Mean final value and the half width of its 95 % interval, with the task's decimals."""
    return spread(finals(runs), digits_of(runs))


def least(runs: Group) -> str:
    """Least final value, with the task's decimals."""
    return f"{min(finals(runs)):.{digits_of(runs)}f}"


def most(runs: Group) -> str:
    """Largest final value, with the task's decimals."""
    return f"{max(finals(runs)):.{digits_of(runs)}f}"


def each(runs: Group) -> str:
    """The final value of every seed."""
    return ", ".join(f"{value:.0f}" for value in finals(runs))


def spent(runs: Group, key: str = "epsilon", digits: int = 4) -> str:
    """The largest epsilon."""
    return shown_epsilon(max(number(run.summary.get(key)) for run in runs), digits)


def status(runs: Group) -> str:
    """Status of the guarantee."""
    return runs[0].guarantee_status


def steps(runs: Group) -> str:
    """Environment steps, to two digits: 600k, 1M."""
    count = float(f"{max(number(run.summary['steps']) for run in runs):.2g}")
    return f"{count / 1e6:g}M" if count >= 1e6 else f"{count / 1e3:g}k"


def z_of(runs: Group) -> str:
    """The noise multiplier."""
    return ABSENT if runs[0].z is None else f"{runs[0].z:g}"


# --- tables


def grouped(runs: Iterable[Run], key: Callable[[Run], Any]) -> list[list[Run]]:
    """The runs that have the same key, in the order of the keys."""
    return [list(some) for _, some in groupby(sorted(runs, key=key), key=key)]


def by_task(groups: Iterable[Group]) -> list[tuple[str, Group]]:
    """Rows of a table, named by their tasks."""
    return [(TASKS[runs[0].env], runs) for runs in groups]


def runs_table(
    first: str, rows: Iterable[tuple[str, Group]], columns: Mapping[str, Callable[[Group], str]]
) -> str:
    """A table with a row for each group of runs; a name that is that of the row before is left out.

    Args:
        first: head of the column of names.
        rows: (name, runs) of each.
        columns: head -> text of the runs.
    """
    lines = [[name, *(show(runs) for show in columns.values())] for name, runs in rows]
    return compact([first, *columns], without_repeats(lines))


def without_repeats(lines: list[list[str]]) -> list[list[str]]:
    """Lines whose first cell is empty if it is that of the line before."""
    return [
        ["" if at and line[0] == lines[at - 1][0] else line[0], *line[1:]]
        for at, line in enumerate(lines)
    ]


def committed(item: str, **wanted: str) -> list[dict[str, str]]:
    """Lines of an item's table.md with these cells."""
    lines = parsed((STORE / item / "table.md").read_text())
    return [one for one in lines if all(one[key] == value for key, value in wanted.items())]


def selected(
    lines: Iterable[dict[str, str]],
    columns: Mapping[str, str | Callable[[dict[str, str]], str]],
) -> str:
    """A table of lines of another one: head -> column, or text of the line."""
    cells = [
        [line[one] if isinstance(one, str) else one(line) for one in columns.values()]
        for line in lines
    ]
    return compact(list(columns), cells)
