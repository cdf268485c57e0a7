"""Run committed rows again and compare their returns.

    python scripts/rerun_rows.py outputs/paper/dppg/control [--count 12] [--pick 7] [--out outputs/rerun]
    python scripts/rerun_rows.py outputs/paper/dppg/table1 --run ppo/halfcheetah/seed=1003

Rows are drawn at random with the seed `--pick`, from all items that are named, or chosen with `--run`. A row is
run alone, whatever the number of runs that it was trained with. `equal`: the same value to the last digit,
which is expected if processor and versions are those of the row. `rounding`: the same to a millionth; runs that
train together solve their linear systems in one batch, which adds in another order. `inside`: where one more
run of the row's setting is expected, by a 95 % prediction interval from its other seeds. `other settings`: the
words of the row give other settings today. Exit code 1: a row is none of the first three. Rerun the command to
resume; finished runs of the same commit are not made again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np

import privrl_bench as pb
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.reporting.run_loader import RUNS_FILE, TOGETHER, read_results, runs_file
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.table_writer import compact

HEAD = ("run", "committed", "now", "result", "machine and versions", "trained together")


def main() -> int:
    """Run the rows. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("items", type=Path, nargs="+", metavar="ITEM", help="folder with runs.csv")
    parser.add_argument("--count", type=int, default=12, help="rows (default 12)")
    parser.add_argument(
        "--run", action="append", default=[], help="column `run` of a row; may be repeated"
    )
    parser.add_argument("--pick", type=int, default=0, help="seed of the choice of rows")
    parser.add_argument("--out", type=Path, default=Path("outputs/rerun"), help="run folders")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count: must be an integer >= 1, got {options.count}")
    for item in options.items:
        if not runs_file(item).exists():
            parser.error(f"ITEM: no {RUNS_FILE} in {item}; allowed: a folder that has one")
    stored = [run for item in options.items for run in read_results(item)]
    ends = tuple(f"/{name}" for name in options.run)
    if missing := [
        one for one in ends if not any(row.folder.as_posix().endswith(one) for row in stored)
    ]:
        parser.error(
            f"--run: no row {missing[0][1:]}; allowed: a value of the column run in {RUNS_FILE}"
        )
    named = [row for row in stored if row.folder.as_posix().endswith(ends)]
    lines = []
    for row in named or random.Random(options.pick).sample(stored, min(options.count, len(stored))):
        again = rerun(row, options.out)
        lines.append(compared(row, again, setting_of(row, stored)))
        print(" | ".join(lines[-1]), flush=True)
    print(compact(list(HEAD), lines))
    return int(any(line[3] not in ("equal", "rounding", "inside") for line in lines))


def rerun(row: Run, out: Path) -> Run:
    """The finished run of a row's words and seed."""
    folder = out / here_commit() / row.digest.replace(":", "-")
    words = [*row.overrides, f"seed={row.seed}", "log=none", "log.plot=false"]
    return pb.run([*words, f"hydra.run.dir={folder}"], quiet=True)


@cache
def here_commit() -> str:
    """The commit of the code, `-dirty` if it is changed."""
    call = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()


def setting_of(row: Run, stored: list[Run]) -> list[float]:
    """Returns of the other rows that differ from a row in the seed only."""
    return [r.final_value for r in stored if r.overrides == row.overrides and r.seed != row.seed]


def compared(row: Run, again: Run, seeds: list[float]) -> list[str]:
    """The cells of a row; `seeds`: returns of the others. A row may have the processor's name only."""
    was, now = row.final_value, again.final_value
    mean, half = mean_ci(seeds) if seeds else (np.nan, np.nan)  # of one seed: equal or not
    near = abs(now - mean) <= half * np.sqrt(len(seeds) + 1)  # of one run, not of the mean
    close = (
        "rounding" if np.isclose(now, was, rtol=1e-6, atol=0) else "inside" if near else "differs"
    )
    result = "equal" if now == was else close
    if again.digest != row.digest:
        result = "other settings"
    there, here = row.provenance, again.provenance
    versions = there.get("versions", {})
    same = bool(versions) and here["processor"].startswith(there.get("processor", "?"))
    same = same and all(here["versions"].get(name) == one for name, one in versions.items())
    name = f"{row.algo}/{row.env} {' '.join(row.overrides[2:])} seed={row.seed}"
    together = str(there.get(TOGETHER, "?"))
    return [name, repr(was), repr(now), result, "as stated" if same else "other", together]


if __name__ == "__main__":
    sys.exit(main())
