"""Memory and speed of rounds with very many users: whole commands, measured from outside.

    python scripts/bench_users.py [--users 4096 1000000] [--rounds N] [--store] [words for privrl-bench]

Each command runs in processes of its own. Their memory, shared pages counted once (PSS of /proc, Linux only),
is sampled five times a second. With `--store` the rows go to outputs/paper/speed/scaling.json, from which
docs/scaling.md is made.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STORE = Path("outputs/paper/speed/scaling.json")


def family(pid: int) -> list[int]:
    """A process and those below it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [p for child in path.read_text().split() for p in family(int(child))]
        except OSError:
            continue
    return found


def memory(pid: int) -> int:
    """Bytes of a process and those below it."""
    total = 0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        total += sum(1024 * int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:"))
    return total


def measure(words: list[str], users: int, rounds: int) -> dict[str, Any]:
    """One run: its epsilon, peak memory and speed, evaluation and start not counted in the speed."""
    with tempfile.TemporaryDirectory() as folder:
        more = ["log=none", "eval.every=0", "eval.episodes=1", "log.plot=false"]
        size = [
            f"privacy.users_per_round={users}",
            f"rounds={rounds}",
            f"hydra.run.dir={folder}/run",
        ]
        command = [sys.executable, "-m", "privrl_bench.cli.train", *words, *more, *size]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.2)
        if process.returncode:
            raise SystemExit(process.returncode)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return {
        "words": words,
        "users": users,
        "rounds": rounds,
        "epsilon": summary["epsilon"],
        "delta": summary["delta"],
        "status": summary["guarantee"]["status"],
        "peak_gb": peak / 1e9,
        "steps": summary["steps"],
        "seconds": summary["steps"] / summary["steps_per_second"],
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, nargs="+", default=[4096, 1_000_000])
    parser.add_argument("--rounds", type=int, default=None, help="default: a million users in all")
    parser.add_argument("--store", action="store_true", help=f"add the rows to {STORE}")
    arguments, more = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = more or ["algo=dppg", "env=cartpole"]
    for users in arguments.users:
        row = measure(words, users, arguments.rounds or math.ceil(1_000_000 / users))
        speed = row["steps"] / row["seconds"]
        print(f"{users:9,d} users  {row['peak_gb']:.2f} GB  {speed:,.0f} steps/s", flush=True)
        if arguments.store:
            found = json.loads(STORE.read_text())
            name = "Poisson" if any(word == "privacy=poisson" for word in words) else "fixed"
            found.setdefault("users", {})[f"{name}, {users:,} users"] = row
            STORE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
