"""Training speed beside the speed of the bare environments, measured in turn in one process.

    python scripts/bench_speed.py [--envs hopper cartpole] [--repeats 5] [--out bench_speed.json]

For each environment, pieces of equal length alternate: (a) the same Gymnasium environments stepped in a
plain loop with the actions of an untrained policy (standard normals, cut), nothing learned; (b) whole DPPG
rounds: rollout, local updates, gate, ledger on disk. Medians over the repeats are printed; on shared
machines the ratio says more than the steps per second. One thread. Evaluation is not part of (b).
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

from privrl_bench.assemble import Parts, assemble
from privrl_bench.config import compose
from privrl_bench.envs.registry import make_env
from privrl_bench.session import Session


class BareLoop:
    """The environments of one run, stepped one after the other without a policy."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._envs = [make_env(parts.config.env) for _ in range(parts.plan.slots)]
        self._rng = np.random.default_rng(0)
        for i, env in enumerate(self._envs):
            env.reset(seed=i)

    def run(self, steps: int) -> float:
        """Steps per second over `steps` environment steps."""
        spec = self._parts.spec
        count = len(self._envs)
        shape = (steps // count, count)
        if spec.discrete:
            actions = self._rng.integers(spec.actions, size=shape)
        else:
            normals = self._rng.standard_normal((*shape, spec.actions)).astype(np.float32)
            actions = np.clip(normals, spec.action_low, spec.action_high).astype(np.float32)
        start = time.perf_counter()
        for row in actions:
            for env, action in zip(self._envs, row, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return actions.shape[0] * count / (time.perf_counter() - start)


def timed(session: Session) -> dict[str, float]:
    """Wrap a session's parts so that their seconds add up in the returned dictionary."""
    spent = {"rollout": 0.0, "local": 0.0, "gate": 0.0, "server": 0.0}

    def wrap(owner: Any, name: str, key: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return real(*args)
            finally:
                spent[key] += time.perf_counter() - start

        setattr(owner, name, call)

    wrap(session.rollout, "collect", "rollout")
    wrap(session.parts.algo, "local", "local")
    wrap(session.parts.plan, "release", "gate")
    wrap(session.parts.algo, "server", "server")
    return spent


def bench(env: str, repeats: int, seconds: float) -> dict[str, Any]:
    """Alternate both loops `repeats` times, about `seconds` each time."""
    with tempfile.TemporaryDirectory() as folder:
        config = compose(["algo=dppg", f"env={env}", "log=none", "total_steps=1_000_000_000"])
        torch.set_num_threads(1)
        parts = assemble([config], [Path(folder) / "ledger.jsonl"])
        session, bare = Session(parts), BareLoop(parts)
        session.step()  # warm up
        bare.run(parts.round_steps)
        start = time.perf_counter()
        session.step()
        rounds = max(1, round(seconds / (time.perf_counter() - start)))
        spent = timed(session)
        alone, training = [], []
        for _ in range(repeats):
            alone.append(bare.run(rounds * parts.round_steps))
            start = time.perf_counter()
            for _ in range(rounds):
                session.step()
            training.append(rounds * parts.round_steps / (time.perf_counter() - start))
        session.close()
    total = sum(spent.values())
    ratios = [b / a for a, b in zip(alone, training, strict=True)]
    return {
        "env": env,
        "environments_alone_steps_per_second": statistics.median(alone),
        "dppg_steps_per_second": statistics.median(training),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "share": {name: value / total for name, value in spent.items()},
        "repeats": repeats,
        "steps_each": rounds * parts.round_steps,
    }


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=["hopper", "halfcheetah", "cartpole"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--out", type=Path, default=None, help="write the figures as JSON")
    arguments = parser.parse_args()
    rows = []
    for env in arguments.envs:
        row = bench(env, arguments.repeats, arguments.seconds)
        rows.append(row)
        low, high = row["ratio_range"]
        print(
            f"{env:12s} environments alone {row['environments_alone_steps_per_second']:8.0f} steps/s"
            f"   DPPG {row['dppg_steps_per_second']:8.0f} steps/s"
            f"   ratio {row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )
        shares = "  ".join(f"{name} {share:.1%}" for name, share in row["share"].items())
        print(f"{'':12s} share of a round: {shares}", flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
