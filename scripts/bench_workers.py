"""What workers give: speed of training with one, two, ... of them, in turn, in one run.

    python scripts/bench_workers.py [--envs cartpole hopper halfcheetah] [--workers 1 2] [--repeats 5]
                                    [--seconds 4] [--out FILE] [words for privrl-bench]

Whole DPPG rounds, ledger on disk included, evaluations not. Pieces of about `--seconds` alternate between the
numbers of workers; the medians and the median ratio of neighbours are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench_speed import Rounds, in_turn

from privrl_bench.kernels.machine import one_thread


def bench(words: list[str], workers: list[int], repeats: int, seconds: float) -> dict[str, Any]:
    """Speeds of one environment, and their ratios to that of the first number of workers."""
    with tempfile.TemporaryDirectory() as folder:
        loops = {
            str(count): Rounds([*words, f"hardware.workers={count}"], Path(folder))
            for count in workers
        }
        speeds = in_turn(loops, repeats, seconds)
        for one in loops.values():
            one.close()
    base, found = speeds[str(workers[0])], {}
    for count, values in speeds.items():
        ratios = sorted(a / b for a, b in zip(values, base, strict=True))
        found[count] = {
            "steps_per_second": statistics.median(values),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    return {"words": words, "workers": found}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=["cartpole", "hopper", "halfcheetah"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=None, help="write the figures as JSON")
    arguments, more = parser.parse_known_args()
    one_thread()
    rows = []
    for env in arguments.envs:
        words = ["algo=dppg", f"env={env}", *more]
        rows.append(
            {"env": env, **bench(words, arguments.workers, arguments.repeats, arguments.seconds)}
        )
        for count, one in rows[-1]["workers"].items():
            low, high = one["ratios"][0], one["ratios"][-1]
            print(
                f"{env:12s} {count} workers  {one['steps_per_second']:9.0f} steps/s  {one['ratio']:.2f} times "
                f"({low:.2f} to {high:.2f})",
                flush=True,
            )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
