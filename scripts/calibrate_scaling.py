"""Moments of observations and returns that a PPO agent meets while it learns in a public simulator.

    python scripts/calibrate_scaling.py env=hopper [total_steps=400_000] [seed=0] [any override]

Prints `obs_mean`, `obs_std` and `reward_scale` (one over the standard deviation of the discounted return) as
they would stand in `conf/env/`. Use it on simulators that hold nobody's data: constants measured on
private data would leak.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer


def main() -> None:
    """Train with running statistics, print what they became."""
    given = sys.argv[1:] or ["env=hopper"]
    names = {word.split("=")[0] for word in given}
    defaults = ["total_steps=400_000"] if "total_steps" not in names else []
    config = compose(
        ["algo=ppo", *given, *defaults, "env.obs_scaling=running", "env.reward_scaling=running"]
    )
    torch.set_num_threads(1)
    parts = make_plan([config])
    session = Trainer(parts)
    for index in range(parts.rounds):
        session.step()
        if (index + 1) % max(1, parts.rounds // 10) == 0:
            value = session.diagnostics[0]["train/return_mean"]
            steps = (index + 1) * parts.round_steps
            print(f"{steps} steps, training return {value:.1f}", flush=True)
    saved = {k: v.numpy() for k, v in session.collector.scaler.get_state().items()}
    session.close()

    def show(name: str, numbers: np.ndarray) -> None:
        print(f"{name}: [{', '.join(f'{x:.3g}' for x in numbers)}]")

    show("obs_mean", saved["obs_mean"][0].mean(0))
    show("obs_std", np.sqrt(saved["obs_var"][0].mean(0)))
    print(f"reward_scale: {1 / np.sqrt(saved['return_var'][0].mean()):.3g}")


if __name__ == "__main__":
    main()
