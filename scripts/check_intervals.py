"""Coverage and width of DP-IS's intervals: users are drawn again from many, noise is drawn again.

    python scripts/check_intervals.py out.csv --policies uniform outputs/run -- env=cartpole privacy.clip=50

The truth is the mean of the clipped estimates over all users that were simulated.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.packs.offline.ope.importance_sampling import per_decision
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

SIZES, EPSILONS, CAP = (1_000, 10_000, 100_000), (0.3, 1.0, 3.0), 10.0


def main() -> None:
    """Write a row for each number of users and each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--policies", nargs=2, required=True, help="that acted, and the evaluated one"
    )
    parser.add_argument("--users", type=int, default=200_000, help="that are simulated")
    parser.add_argument(
        "--times", type=int, default=1000, help="that data and noise are drawn again"
    )
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    acted, target = args.policies
    words = ["algo=dp_is", f"data.policy={acted}", f"algo.target={target}", *args.words]
    rows = rows_of([*words, f"privacy.population={args.users}"])
    truth, rng = rows[:, 0].mean(), np.random.default_rng(7)
    sigma = {
        e: make_plan(
            [compose([*words, "privacy.population=1000", f"privacy.epsilon={e}"])]
        ).config.privacy.noise_multiplier
        for e in EPSILONS
    }
    found = []
    for n in SIZES:
        drawn = [rows[rng.integers(0, len(rows), n)].mean(0) for _ in range(args.times)]
        plain = [per_decision(one.tolist(), 0.0, n, CAP) for one in drawn]
        width = np.median([one.high - one.low for one in plain])
        for e in EPSILONS:
            std = sigma[e] * 5.0**0.5 / n
            noised = [one + rng.normal(0, std, one.shape) for one in drawn]
            made = [per_decision(one.tolist(), std, n, CAP) for one in noised]
            covered = np.mean([one.low <= truth <= one.high for one in made])
            error = np.sqrt(np.mean([(one.value - truth) ** 2 for one in made]))
            wide = np.median([one.high - one.low for one in made])
            found.append([*args.words[:1], n, e, covered, wide / width, error / width])
            print(*found[-1], flush=True)
    new = not args.out.exists()
    with args.out.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["env", "users", "epsilon", "coverage", "width_ratio", "rmse_by_width"])
        writer.writerows(found)


def rows_of(words: list[str]) -> np.ndarray:
    """[users, 5] rows of DP-IS, without noise."""
    trainer = Trainer(make_plan([compose([*words, "privacy.z=0"])]))
    algo, parts = trainer.parts.algo, []
    for users in trainer.collector.simulate():  # type: ignore[attr-defined]
        rows, valid, _ = algo.user_update(trainer.state, users, trainer.parts.streams).take()
        parts.append(rows["estimates"][valid])
    trainer.close()
    return torch.cat(parts).double().numpy()


if __name__ == "__main__":
    main()
