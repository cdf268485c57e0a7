"""What secure noise costs: milliseconds a release beside seeded noise, and its share of a training round.

    python scripts/bench_noise.py [--envs cartpole halfcheetah] [--repeats 200] [--rounds 5] [--out FILE]
                                  [--words +paper=dppg]

For each environment, the sizes are those of the plan that `algo=dppg env=...` and the words compose. Draws of
both kinds alternate in one process; medians over the repeats are printed, and the median of the ratios of
neighbours, which says more on shared machines. Then whole rounds with secure noise are trained, and the
noise drawn inside them is timed. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.privacy.noise import NoiseSource, noise_source
from privrl_bench.run.plan import make_plan
from privrl_bench.run.trainer import Trainer


def milliseconds(source: NoiseSource, sizes: list[int], index: int) -> float:
    """Time of the noise of one release."""
    start = time.perf_counter()
    source.integers(sizes, [2.0**37] * len(sizes), index, 0)
    return 1e3 * (time.perf_counter() - start)


def draws(sizes: list[int], repeats: int) -> dict[str, float]:
    """Both kinds in turn: median ms a release, and their ratio."""
    sources = {kind: noise_source(kind, 0, 0) for kind in ("seeded", "secure")}
    for source in sources.values():
        milliseconds(source, sizes, 0)  # warm up
    times: dict[str, list[float]] = {kind: [] for kind in sources}
    for index in range(repeats):
        for kind, source in sources.items():
            times[kind].append(milliseconds(source, sizes, index))
    ratios = [b / a for a, b in zip(times["seeded"], times["secure"], strict=True)]
    return {
        "seeded_ms": statistics.median(times["seeded"]),
        "secure_ms": statistics.median(times["secure"]),
        "ratio": statistics.median(ratios),
    }


class Timed:
    """A source of noise that adds up its own time."""

    def __init__(self, source: NoiseSource):
        self.name, self.notes = source.name, source.notes
        self._source = source
        self.seconds = 0.0

    def integers(
        self, sizes: list[int], stds: list[float], round_index: int, attempt: int
    ) -> list[torch.Tensor]:
        """See `SeededNoise.integers`."""
        start = time.perf_counter()
        try:
            return self._source.integers(sizes, stds, round_index, attempt)
        finally:
            self.seconds += time.perf_counter() - start

    def binomial(self, n: int, q: float, round_index: int) -> int:
        """See `SeededNoise.binomial`."""
        return self._source.binomial(n, q, round_index)

    def choose(self, n: int, count: int, round_index: int) -> np.ndarray:
        """See `SeededNoise.choose`."""
        return self._source.choose(n, count, round_index)


def bench(env: str, repeats: int, rounds: int, more: list[str]) -> dict[str, Any]:
    """The figures of one environment."""
    words = ["algo=dppg", f"env={env}", "privacy.noise=secure", "log=none", *more]
    config = compose([*words, "total_steps=1_000_000_000"])
    with tempfile.TemporaryDirectory() as folder:
        parts = make_plan([config]).opened([Path(folder) / "ledger.jsonl"])
        sizes = [block.size for block in parts.gate.blocks]
        result: dict[str, Any] = {"env": env, "parameters": sum(sizes), **draws(sizes, repeats)}
        session = Trainer(parts)
        session.step()  # warm up
        (source,) = parts.gate._noises
        timed = Timed(source)
        parts.gate._noises = [timed]  # type: ignore[list-item]
        seconds, shares = [], []
        for _ in range(rounds):
            before, start = timed.seconds, time.perf_counter()
            session.step()
            seconds.append(time.perf_counter() - start)
            shares.append((timed.seconds - before) / seconds[-1])
        session.close()
    result["round_ms"] = 1e3 * statistics.median(seconds)
    result["share_of_round"] = statistics.median(shares)
    return {**result, "repeats": repeats, "rounds": rounds}


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=["cartpole", "halfcheetah"])
    parser.add_argument("--repeats", type=int, default=200, help="releases of each kind")
    parser.add_argument("--rounds", type=int, default=5, help="training rounds to compare with")
    parser.add_argument("--words", nargs="*", default=[], help="further words for privrl-bench")
    parser.add_argument("--out", type=Path, default=None, help="write the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for env in arguments.envs:
        row = bench(env, arguments.repeats, arguments.rounds, arguments.words)
        rows.append(row)
        print(
            f"{env:12s} {row['parameters']:6d} parameters   seeded {row['seeded_ms']:.3f} ms   "
            f"secure {row['secure_ms']:.3f} ms a release   ratio {row['ratio']:.1f}   "
            f"round {row['round_ms']:.0f} ms, secure noise {row['share_of_round']:.2%} of it",
            flush=True,
        )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
