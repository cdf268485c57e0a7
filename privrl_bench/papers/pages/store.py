"""Reads the results store for the blocks, and writes numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers import items as papers
from privrl_bench.papers.paper_table import PaperTable
from privrl_bench.reporting.results_store import read_results
from privrl_bench.reporting.runs import Run, number

ROOT = Path(__file__).resolve().parents[3]
STORE = ROOT / "outputs" / "paper"
# `made_at` of rows that were current before identity version 2; docs/results/index.md says it of all of them.
BEFORE = "509cd63"
BLOCKS: dict[str, Callable[[], str]] = {}
TASKS = {
    **{"cartpole": "CartPole", "acrobot": "Acrobot", "pendulum": "Pendulum", "hopper": "Hopper"},
    **{"halfcheetah": "HalfCheetah", "dosing0": "Dosing-0", "dosing1": "Dosing-1"},
    **{"walker2d": "Walker2d", "ant": "Ant"},
    **{"cartpole_balance": "Balance", "cartpole_swingup": "Swingup"},
}
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


def made_earlier(runs: Sequence[Run]) -> str:
    """How many runs were not current at `BEFORE` already, as a sentence; empty if none."""
    old = [run for run in runs if run.made_at not in ("", BEFORE)]
    if not old:
        return ""
    commits = ", ".join(f"`{one}`" for one in dict.fromkeys(run.made_at for run in old))
    return (
        f"{len(old)} of these {len(runs)} runs are not current: they were made at {commits}, and their "
        "overrides do not give their settings today (`made_at` in `runs.csv`)."
    )


# --- text of numbers


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and half width of the 95 % interval."""
    return "{:.{d}f} ± {:.{d}f}".format(*mean_ci(values), d=digits)


def finals(runs: Sequence[Run]) -> list[float]:
    """Final values."""
    return [run.final_value for run in runs]


def ranged(runs: Sequence[Run]) -> str:
    """Mean, least and largest final value."""
    values = finals(runs)
    extremes = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{extremes}"


def each(runs: Sequence[Run]) -> str:
    """The final value of every seed."""
    return ", ".join(f"{value:.0f}" for value in finals(runs))


def last_fifth(runs: Sequence[Run]) -> str:
    """Mean over seeds of the evaluations in the last fifth of the steps."""
    means = [run.evaluated("last_fifth", "mean") for run in runs]
    if not np.isfinite(means).all():  # runs of before summaries had it
        curves = [(run.curve(), 0.8 * number(run.summary["steps"])) for run in runs]
        means = [values[at > start].mean() for (at, values), start in curves]
    return f"{np.mean(means):.1f}"


def spent(runs: Sequence[Run], key: str = "epsilon", digits: int = 4) -> str:
    """The largest epsilon."""
    return shown_epsilon(max(number(run.summary.get(key)) for run in runs), digits)


def steps(runs: Sequence[Run]) -> str:
    """Environment steps, to two digits: 600k, 1M."""
    count = float(f"{max(number(run.summary['steps']) for run in runs):.2g}")
    return f"{count / 1e6:g}M" if count >= 1e6 else f"{count / 1e3:g}k"


def z_of(runs: Sequence[Run]) -> str:
    """The noise multiplier."""
    return "-" if runs[0].z is None else f"{runs[0].z:g}"


def without_repeats(lines: list[list[str]]) -> list[list[str]]:
    """Lines whose first cell is empty if it is that of the line before."""
    return [
        ["" if at and line[0] == lines[at - 1][0] else line[0], *line[1:]]
        for at, line in enumerate(lines)
    ]
