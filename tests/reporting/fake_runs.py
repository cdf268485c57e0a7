"""Writes run folders as training does, with invented numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml


def write_run(
    folder: Path,
    *,
    algo: str = "dppg",
    env: str = "cartpole",
    z: float | None = 1.0,
    seed: int = 0,
    final: float = 400.0,
    epsilon: float = 12.5,
    status: str = "done",
    guarantee: str = "heuristic",
    points: int = 12,
    steps: int = 600_000,
    extra: dict[str, Any] | None = None,
) -> Path:
    """One run folder; `z=None` is a run without a mechanism. `extra` joins the algo settings."""
    folder.mkdir(parents=True, exist_ok=True)
    mechanism = "none" if z is None else "gaussian"
    config = {
        "algo": {"name": algo, "lr": 3e-4, **(extra or {})},
        "env": {"name": env, "id": None},
        "privacy": {"mechanism": mechanism, "z": 1.0 if z is None else z, "delta": 1e-5},
        "log": {"wandb": "none", "tags": [f"seed{seed}"]},
        "total_steps": steps,
        "seed": seed,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "overrides.txt").write_text(f"algo={algo}\nenv={env}\nprivacy.z={z}\nseed={seed}\n")
    (folder / "status.json").write_text(json.dumps({"status": status, "reason": ""}))
    generator = np.random.default_rng(seed)
    with (folder / "metrics.jsonl").open("w") as file:
        for at in np.linspace(0, 1, points):
            mean = 20 + (final - 20) * (1 - np.exp(-4 * at)) / (1 - np.exp(-4))
            row = {
                "round": int(at * 100),
                "steps": int(at * steps),
                "privacy/epsilon": epsilon * float(np.sqrt(at)) if at else 0.0,
                "eval/return_mean": float(mean + generator.normal(0, 8)) if at < 1 else final,
                "eval/return_ci95": 25.0,
            }
            file.write(json.dumps(row) + "\n")
    (folder / "ledger.jsonl").write_text(json.dumps({"round": 0, "z": z}) + "\n")
    if status == "done":
        summary = {
            "status": "done",
            "return": {"mean": final, "ci95": 20.0, "definition": "mean undiscounted return"},
            "epsilon": epsilon,
            "epsilon_paper": epsilon * 1.4,
            "delta": 1e-5,
            "guarantee": {
                "status": guarantee,
                "epsilon": epsilon,
                "delta": 1e-5,
                "unit": "segment of 64 steps",
                "notion": "central",
                "adjacency": "zero_out",
                "caveats": ["shared critic"],
            },
            "steps": steps,
            "wall_seconds": 60.0,
            "steps_per_second": steps / 60.0,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_sweep(root: Path, env: str = "cartpole", scale: float = 1.0) -> None:
    """DPPG at six noise multipliers (one of them 0) and PPO, four seeds each."""
    returns = {0.0: 498.0, 0.25: 495.0, 0.5: 490.0, 1.0: 470.0, 2.0: 400.0, 4.0: 210.0}
    for seed in range(4):
        offset = (seed - 1.5) * 12
        for z, value in returns.items():
            epsilon = float("inf") if z == 0 else 30.0 / z
            write_run(
                root / f"z{z}" / f"seed{seed}",
                env=env,
                z=z,
                seed=seed,
                final=scale * (value + offset * (0.2 + z)),
                epsilon=epsilon,
                guarantee="none" if z == 0 else "heuristic",
            )
        write_run(
            root / "ppo" / f"seed{seed}",
            algo="ppo",
            env=env,
            z=None,
            seed=seed,
            final=scale * (480.0 + offset / 4),
            epsilon=float("inf"),
            guarantee="none",
        )
