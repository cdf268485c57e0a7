"""What workers give: time of a round with one, two, ... of them, in turn, in one run.

    python scripts/bench_workers.py [--envs cartpole hopper halfcheetah] [--workers 1 2] [--repeats 5]
                                    [--seconds 4] [--out FILE] [words for privrl-bench]

Whole DPPG rounds, ledger on disk included, evaluations not. Pieces of about `--seconds` alternate between the
numbers of workers; the medians and the median ratio of neighbours are printed. All release the same parameters,
which is checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.kernels.machine import one_thread
from privrl_bench.run.plan import make_plan
from privrl_bench.run.trainer import Trainer


def begun(words: list[str], workers: int, folder: Path) -> Trainer:
    """A run whose workers are ready and whose kernels are compiled."""
    more = ["log=none", "rounds=100000", f"hardware.workers={workers}"]
    run = compose([*words, *more])
    session = Trainer(make_plan([run]).opened([folder / f"{time.time_ns()}.jsonl"]))
    for _ in range(3):
        session.step()
    return session


def piece(session: Trainer, rounds: int) -> float:
    """Seconds of a round, over so many."""
    start = time.perf_counter()
    for _ in range(rounds):
        session.step()
    return (time.perf_counter() - start) / rounds


def bench(words: list[str], workers: list[int], repeats: int, seconds: float) -> dict[str, Any]:
    """The figures of one environment."""
    with tempfile.TemporaryDirectory() as folder:
        sessions = {count: begun(words, count, Path(folder)) for count in workers}
        rounds = max(1, round(seconds / piece(sessions[workers[0]], 2)))
        for count in workers[1:]:
            piece(sessions[count], 2)
        times: dict[int, list[float]] = {count: [] for count in workers}
        for _ in range(repeats):
            for count, session in sessions.items():
                times[count].append(piece(session, rounds))
        first, *others = (one.parts.algo.actor(one.state) for one in sessions.values())
        same = all(torch.equal(first, one) for one in others)
        steps = sessions[workers[0]].parts.round_steps
        for session in sessions.values():
            session.close()
    base = times[workers[0]]
    return {
        "words": words,
        "rounds": rounds,
        "equal": same,
        "workers": {
            str(count): {
                "round_ms": 1e3 * statistics.median(found),
                "steps_per_second": steps / statistics.median(found),
                "ratio": statistics.median(a / b for a, b in zip(base, found, strict=True)),
                "ratios": sorted(a / b for a, b in zip(base, found, strict=True)),
            }
            for count, found in times.items()
        },
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
        row = bench(words, arguments.workers, arguments.repeats, arguments.seconds)
        rows.append({"env": env, **row})
        for count, one in row["workers"].items():
            print(
                f"{env:12s} {count} workers  {one['round_ms']:8.1f} ms a round  "
                f"{one['steps_per_second']:9.0f} steps/s  {one['ratio']:.2f} times "
                f"({one['ratios'][0]:.2f} to {one['ratios'][-1]:.2f})  "
                f"{'same parameters' if row['equal'] else 'OTHER PARAMETERS'}",
                flush=True,
            )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
