"""What the gate costs: its share of a training run's time, and the memory of its noise.

    python scripts/bench_gate.py [--env cartpole] [--rounds 146] [--words privacy.noise=secure]

Trains the run that `algo=dppg env=...` and the words compose, once with independent noise and with correlated
noise of several correlations, in one process and in turn, and prints for each: the share of `Gate.add` and
`Gate.release` in the CPU time and in the time of the run, its median, and the bytes of noise that are kept.
One thread.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.run.plan import make_plan
from privrl_bench.run.trainer import Trainer

SETTINGS = {
    "independent": ["privacy=fixed"],
    "correlation 0.95": ["privacy=correlated"],
    "correlation 1": ["privacy=correlated", "privacy.correlation=1"],
}


def bench(env: str, rounds: int, words: list[str]) -> dict[str, Any]:
    """Train one run and time its gate."""
    config = compose(
        ["algo=dppg", f"env={env}", "log=none", f"rounds={rounds}", "hardware.workers=1", *words]
    )
    with tempfile.TemporaryDirectory() as folder:
        parts = make_plan([config]).opened([Path(folder) / "ledger.jsonl"])
        gate, times = parts.gate, []
        add, release, open_ = gate.add, gate.release, [0.0, 0.0]

        def timed(call: Any, *args: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            result = call(*args)
            open_[0] += time.perf_counter() - wall
            open_[1] += time.thread_time() - cpu
            return result

        def released(index: int) -> Any:
            result = timed(release, index)
            times.append((open_[0], open_[1]))
            open_[:] = [0.0, 0.0]
            return result

        gate.add = functools.partial(timed, add)  # type: ignore[method-assign]
        gate.release = released  # type: ignore[method-assign, assignment]
        session = Trainer(parts)
        session.step()  # warm up
        times.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(rounds - 1):
            session.step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        session.close()
        kept = sum(past.nbytes for past in getattr(gate.mechanism, "_past", {}).values())
    walls, cpus = zip(*times, strict=True)
    return {
        "cpu_share": sum(cpus) / cpu,
        "wall_share": sum(walls) / wall,
        "median_ms": 1e3 * statistics.median(cpus),
        "kept": kept,
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--rounds", type=int, default=146)
    parser.add_argument("--words", nargs="*", default=[], help="further words for privrl-bench")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, words in SETTINGS.items():
        row = bench(arguments.env, arguments.rounds, [*words, *arguments.words])
        print(
            f"{arguments.env}  {name:17s} gate {row['cpu_share']:.1%} of CPU time, {row['wall_share']:.1%} of "
            f"time, {row['median_ms']:.2f} ms a release; noise kept {row['kept'] / 1e6:.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
