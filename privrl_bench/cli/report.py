"""The command `privrl report`: tables, plots and one page from run folders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from privrl_bench.cli.parsing import Parser
from privrl_bench.errors import ConfigError
from privrl_bench.functional.statistics import FEWEST, improvement
from privrl_bench.reporting.page import paragraph, picture, table, write_page
from privrl_bench.reporting.plots import curves, not_drawn, profiles, return_against_epsilon
from privrl_bench.reporting.run_loader import load_runs
from privrl_bench.reporting.runs import Run, usable
from privrl_bench.reporting.table_writer import ABSENT, short
from privrl_bench.reporting.tables import (
    Group,
    cells,
    left_out,
    legend,
    markdown,
    summarise,
    write_tables,
)
from privrl_bench.training.writable import check_folder

_FEWEST = 3  # seeds of a group for statistics over them, intervals apart


ABOUT = """Make tables, plots and one page from run folders at any depth.

Prints the table of returns and writes table.md, table.csv, table.tex, plots (PNG and SVG) and index.html."""
CODES = "Exit codes: 0 success; 1 a failure; 2 bad input, or no finished run; 130 interrupted."


def main(words: Sequence[str], prog: str) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog, ABOUT, CODES)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="has run folders")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for the results (default: report/ in the first DIR)",
    )
    options = parser.read(words)
    for folder in options.folders:
        if not folder.is_dir():
            there = "is a file" if folder.exists() else "does not exist"
            raise ConfigError("DIR", f"{folder} {there}; give a folder with run folders")
    out = options.out or options.folders[0] / "report"
    check_folder("--out", out)
    runs = [run for folder in options.folders for run in load_runs(folder)]
    for line in left_out(runs):
        print(f"not counted or incomplete: {line}", file=sys.stderr)
    if not usable(runs):
        raise ConfigError("DIR", f"no finished run below {', '.join(map(str, options.folders))}")
    out.mkdir(parents=True, exist_ok=True)
    rows = summarise(runs)
    print(markdown(rows))
    page = write_report(runs, out, " ".join(map(str, options.folders)))
    print(f"results: {page}", file=sys.stderr)
    return 0


def write_report(runs: Sequence[Run], out: Path, title: str) -> Path:
    """Write tables, plots and index.html.

    Args:
        runs: of any kind; those that are not finished are counted out.
        out: an existing folder.
        title: of the page.

    Returns:
        The path of the page.
    """
    rows = summarise(runs)
    write_tables(rows, out)
    head, lines = cells(rows)
    parts = [table("Final returns", head, lines, legend(rows))]
    reason = not_drawn(runs)
    if reason:
        parts.append(paragraph(reason))
    else:
        curves(runs, out / "curves.png")
        bars = "mean over seeds; the legend says what the bars are"
        parts.append(picture("Learning curves", out / "curves.png", bars))
    return_against_epsilon(runs, out / "return_against_epsilon.png")
    parts.append(picture("Return against epsilon", out / "return_against_epsilon.png"))
    if not reason and any(len(run.curve("exact/regret")[0]) for run in runs):
        curves(runs, out / "regret.png", "exact/regret", "cumulative regret")
        parts.append(picture("Regret", out / "regret.png", "expected, by dynamic programming"))
    many = [group for group in rows if len(group.runs) >= _FEWEST]
    if many and not reason:
        profiles(many, out / "profiles.png")
        caption = "share of a group's seeds whose final return is above a threshold"
        parts.append(picture("Performance profiles", out / "profiles.png", caption))
    pairs = comparisons(many)
    if pairs:
        parts.append(
            table(
                "Probability of improvement",
                ("env", "X", "Y", "P(X > Y)", "95 % interval"),
                pairs,
                f"probability that a seed of X ends above one of Y; bootstrap over seeds, from {FEWEST} on",
            )
        )
    page = out / "index.html"
    write_page(page, f"privrl_bench: {title}", parts, runs)
    return page


def comparisons(groups: Sequence[Group]) -> list[list[str]]:
    """Return the probability of improvement for every pair of groups of one environment."""
    lines = []
    for one, other in combinations(groups, 2):
        measure = one.runs[0].measure
        if one.env != other.env or measure is not other.runs[0].measure:
            continue
        x, y = ([run.final_value for run in group.runs] for group in (one, other))
        if measure.direction == "down":
            x, y = y, x
        value, low, high = improvement(x, y, np.random.default_rng(0))
        few = min(len(x), len(y)) < FEWEST
        spread = ABSENT if few else f"{short(low, 2)} to {short(high, 2)}"
        lines.append([one.env, one.label, other.label, f"{value:.2f}", spread])
    return lines
