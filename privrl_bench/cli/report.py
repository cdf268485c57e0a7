"""The command `privrl report`: tables, plots and one page from run folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from privrl_bench.cli.parsing import Parser
from privrl_bench.errors import ConfigError
from privrl_bench.reporting.page import counted, write_report
from privrl_bench.reporting.run_loader import load_runs
from privrl_bench.reporting.runs import usable
from privrl_bench.reporting.table_writer import aligned
from privrl_bench.reporting.tables import definitions, left_out, printed, summarise
from privrl_bench.training.progress import coloured, folded
from privrl_bench.training.writable import check_folder

ABOUT = """Make tables, plots and one page from run folders at any depth.

Prints the table of returns and writes table.md, table.csv, table.tex, plots (PNG, SVG, PDF) and index.html.
Of each algorithm and environment the runs of one length count, the one that most of them have; a note says
which were left out.

Example: {} outputs/dppg/cartpole --where algo.critic=private"""
CODES = "Exit codes: 0 success; 1 a failure; 2 bad input, or no finished run; 130 interrupted."


def main(words: Sequence[str], prog: str) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog, ABOUT.format(prog), CODES)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="has run folders")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for the results (default: report/ in DIR, or in the folder of all DIRs)",
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this setting (algo.lr=3e-4, env=hopper, seed=0); may be given several times",
    )
    parser.add_argument(
        "--all-lengths", action="store_true", help="compare runs of different lengths, too"
    )
    options = parser.read(words)
    for folder in options.folders:
        if not folder.is_dir():
            there = "is a file" if folder.exists() else "does not exist"
            raise ConfigError("DIR", f"{folder} {there}; give a folder with run folders")
    out = options.out or Path(os.path.commonpath(options.folders)) / "report"
    check_folder("--out", out)
    runs = [run for folder in options.folders for run in load_runs(folder)]
    for line in left_out(runs):
        print(f"not counted or incomplete: {line}", file=sys.stderr)
    if not usable(runs):
        raise ConfigError("DIR", f"no finished run below {', '.join(map(str, options.folders))}")
    kept, notes = counted(runs, options.where, options.all_lengths)
    out.mkdir(parents=True, exist_ok=True)
    rows = summarise(kept)
    below = (folded("", line) for line in [*definitions(rows), *notes])
    print("\n".join([*map(coloured, aligned(*printed(rows)).splitlines()), "", *below]))
    page = write_report(kept, out, " ".join(map(str, options.folders)), notes)
    print(f"results: {page}", file=sys.stderr)
    return 0
