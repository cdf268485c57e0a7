"""Tables and plots of the run folders below a folder.

Example: python scripts/report_runs.py outputs/dppg/cartpole
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from privrl_bench.report.plots import curves, return_against_epsilon
from privrl_bench.report.runs import load_runs
from privrl_bench.report.tables import left_out, markdown, summarise, write_tables


def main(arguments: list[str] | None = None) -> int:
    """Print the table, write table.md, table.csv and two pictures. 1 when there is nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, help="folder with run folders at any depth")
    parser.add_argument("--out", type=Path, help="where to write (default: ROOT/report)")
    options = parser.parse_args(arguments)
    try:
        runs = load_runs(options.root)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    rows = summarise(runs)
    for line in left_out(runs):
        print(f"not counted or incomplete: {line}", file=sys.stderr)
    if not rows:
        print(f"no finished run below {options.root}", file=sys.stderr)
        return 1
    out = options.out or options.root / "report"
    write_tables(rows, out)
    curves(runs, out / "curves.png")
    return_against_epsilon(runs, out / "return_against_epsilon.png")
    print(markdown(rows))
    print(f"written to {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
