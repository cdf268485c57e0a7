"""Speed of training: beside a plain Gymnasium loop, with workers, and on a GPU.

    python scripts/bench_speed.py speeds [--envs cartpole hopper halfcheetah]
    python scripts/bench_speed.py workers [--envs ...] [words for privrl-bench]
    python scripts/bench_speed.py gpu [--envs ...] [words for privrl-bench]

- speeds: Gymnasium's environments stepped in a plain loop with the actions of an untrained policy, nothing
  learned; our slots stepped in the same way; whole DPPG rounds.
- workers: whole rounds with one worker and with two. gpu: on one core and on the GPU. Words may name another
  algorithm.

Whole rounds have the ledger on disk and no evaluations. Pieces of about `--seconds` alternate. Medians over
`--repeats` of steps per second and of the ratio to the first are printed; on shared machines ratios of
neighbours say more than speeds. One thread. `--out FILE` has the numbers as JSON.
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
from privrl_bench.envs.registry import make_env, make_slots
from privrl_bench.kernels.machine import one_thread
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.training.trainer import Trainer

FOREVER = "total_steps=1_000_000_000"


class BareLoop:
    """The environments of one run, stepped without a policy: Gymnasium's one by one, or our slots."""

    def __init__(self, parts: Plan, *, ours: bool):
        spec, count = parts.spec, parts.gate.slots
        self._count, self._ours = count, ours
        rng = np.random.default_rng(0)
        shape = (parts.steps, count)
        if spec.discrete:
            self._actions = rng.integers(spec.actions, size=shape)
        else:
            normals = rng.standard_normal((*shape, spec.actions)).astype(np.float32)
            self._actions = np.clip(normals, spec.action_low, spec.action_high).astype(np.float32)
        if ours:
            self._slots = make_slots(parts.config.env, count)
            self._slots.reset(np.arange(count), list(range(count)))
        else:
            self._envs = [make_env(parts.config.env) for _ in range(count)]
            for i, env in enumerate(self._envs):
                env.reset(seed=i)

    def run(self, rounds: int) -> int:
        """Steps taken: `rounds` times T steps of every slot."""
        for _ in range(rounds):
            for row in self._actions:
                self._step_ours(row) if self._ours else self._step_gym(row)
        return rounds * self._actions.shape[0] * self._count

    def _step_gym(self, row: np.ndarray) -> None:
        for env, action in zip(self._envs, row, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    def _step_ours(self, row: np.ndarray) -> None:
        result = self._slots.step(np.arange(self._count), row)
        over = np.flatnonzero(result.terminated | result.truncated)
        if len(over):
            self._slots.reset(over, over.tolist())


class Rounds:
    """Whole training rounds of a session."""

    def __init__(self, words: list[str], folder: Path, replicas: int = 1):
        runs = [compose([*words, "log=none", FOREVER, f"seed={r}"]) for r in range(replicas)]
        self.parts = make_plan(runs).opened([folder / f"{time.time_ns()}.jsonl" for _ in runs])
        self._session = Trainer(self.parts)
        self._session.step()  # warm up: compiled code, caches

    def run(self, rounds: int) -> int:
        """Environment steps of `rounds` rounds."""
        for _ in range(rounds):
            self._session.step()
        return rounds * self.parts.round_steps * len(self.parts.configs)

    def close(self) -> None:
        """End its workers."""
        self._session.close()


def compared(loops: dict[str, Any], repeats: int, seconds: float) -> dict[str, Any]:
    """Speed of each loop and its ratio to the first: `repeats` pieces in turn, each about `seconds` long."""
    rounds = {}
    for name, loop in loops.items():
        loop.run(1)
        start = time.perf_counter()
        loop.run(1)
        rounds[name] = max(1, round(seconds / (time.perf_counter() - start)))
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            start = time.perf_counter()
            steps = loop.run(rounds[name])
            speeds[name].append(steps / (time.perf_counter() - start))
    base = next(iter(speeds.values()))
    return {
        name: {
            "steps_per_second": statistics.median(found),
            **ratio([a / b for a, b in zip(found, base, strict=True)]),
        }
        for name, found in speeds.items()
    }


def ratio(values: list[float]) -> dict[str, Any]:
    """Median and range."""
    return {"ratio": statistics.median(values), "ratio_range": [min(values), max(values)]}


def loops_of(what: str, env: str, words: list[str], folder: Path) -> dict[str, Any]:
    """What is compared on an environment, by name."""
    words = ["algo=dppg", f"env={env}", *words]
    if what == "workers":
        return {n: Rounds([*words, f"hardware.workers={n}"], folder) for n in ("1", "2")}
    if what == "gpu":
        one = [*words, "hardware.workers=1"]
        return {d: Rounds([*one, f"hardware.device={d}"], folder) for d in ("cpu", "cuda")}
    training = Rounds(words, folder)
    loops: dict[str, Any] = {
        "gymnasium": BareLoop(training.parts, ours=False),
        "slots": BareLoop(training.parts, ours=True),
        "dppg": training,
    }
    if env == "cartpole":
        loops["dppg, 8 replicas"] = Rounds(words, folder, replicas=8)
        loops["dppg, paper's cohort"] = Rounds([*words, "+paper=dppg"], folder)
        loops["dppg, paper's cohort, 8 replicas"] = Rounds([*words, "+paper=dppg"], folder, 8)
    return loops


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speeds", "workers", "gpu"))
    parser.add_argument("--envs", nargs="+", default=["cartpole", "hopper", "halfcheetah"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    given, words = parser.parse_known_args()
    one_thread()
    found = {}
    for env in given.envs:
        with tempfile.TemporaryDirectory() as folder:
            loops = loops_of(given.what, env, words, Path(folder))
            found[env] = compared(loops, given.repeats, given.seconds)
            for loop in loops.values():
                if isinstance(loop, Rounds):
                    loop.close()
        print(f"{env}: steps/s, and the ratio to the first")
        for label, row in found[env].items():
            low, high = row["ratio_range"]
            speed, middle = row["steps_per_second"], row["ratio"]
            print(f"  {label:32s} {speed:9.0f}   {middle:6.2f} ({low:.2f} to {high:.2f})")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"torch": torch.__version__, given.what: found}
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
