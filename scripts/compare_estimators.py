"""Errors of estimates of a policy's value by users and epsilon: a row for each, and their figure.

    python scripts/compare_estimators.py docs/results/estimators.csv work
    python scripts/compare_estimators.py docs/results/estimators.csv --draw docs/pictures/estimators.svg

Settings are the defaults, but for ranges of returns and features. Seeds of users and noise are 1000 to 1009.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import privrl_bench as pb
from privrl_bench.packs.offline.fixed_policies import LinearValues
from privrl_bench.reporting import style

SIZES, EPSILONS, SEEDS = (1_000, 10_000), ("0.3", "1", "3"), range(1000, 1010)
RANGES = {"chain": ["algo.center=0.5", "privacy.clip=0.5"], "cartpole": ["privacy.clip=100"]}
NAMES = ["task", "users", "epsilon", "algo", "truth", "error", "low", "high", "without_value"]
TITLES = {"chain": "chain", "cartpole": "CartPole"}
LABELS = {"dp_is": "DP-IS", "dp_lstd": "DP-LSTD", "gpope": "GPOPE"}


def main() -> None:
    """Add the rows that are missing, or draw those that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--draw", type=Path)
    args = parser.parse_args()
    if args.draw:
        return draw(args.out, args.draw)
    rows, out = [NAMES] if not args.out.exists() else _read(args.out), args.out.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    os.chdir(args.work)
    for task in RANGES:
        truth = ""
        for users in SIZES:
            for algo in LABELS:
                for epsilon in EPSILONS:
                    key = [task, str(users), epsilon, algo]
                    if any(row[:4] == key for row in rows):
                        continue
                    truth = truth or f"{_truth(task):.5g}"
                    found = _errors(task, users, epsilon, algo, float(truth))
                    rows.append([*key, truth, *found])
                    with out.open("w", newline="") as file:
                        csv.writer(file, lineterminator="\n").writerows(rows)
                    print(*rows[-1], flush=True)
    return None


def _target(task: str) -> str:
    """The policy that is evaluated: on the chain there is one; on CartPole a better one than uniform play."""
    if task == "chain":
        return "uniform"
    weights = torch.zeros(5, 2, dtype=torch.float64)
    weights[1:3, 0] = 1.0  # of the cosines of the pole's rate and angle: pushes to where it falls
    made = LinearValues(
        "CartPole-v1", 1, 1, [-4.8, -4, -0.418, -4], [4.8, 4, 0.418, 4], weights, {}
    )
    made.save(Path("better.json"))
    return "better.json:softmax:2.0"


def _truth(task: str) -> float:
    """Mean discounted return of the target's own 100,000 users."""
    own = [f"env={task}", f"data.policy={_target(task)}", "privacy.population=100000", "seed=999"]
    run = pb.run(
        ["algo=dp_is", *own, *RANGES[task], "algo.gamma=0.99", "privacy.z=0", "log=none"],
        quiet=True,
    )
    return float(run.summary["value"]["mean"])


def _errors(task: str, users: int, epsilon: str, algo: str, truth: float) -> list[str]:
    """Median and quartiles of the absolute error over seeds, and how many runs gave no value."""
    words = [f"algo={algo}", f"env={task}", "data.policy=uniform", f"algo.target={_target(task)}"]
    words += [f"privacy.population={users}", f"privacy.epsilon={epsilon}", "log=none"]
    words += (
        ["algo.gamma=0.99", *RANGES[task]]
        if algo == "dp_is"
        else ["algo.features=linear"] * (task == "cartpole")
    )
    made = [one.summary for one in pb.multirun(words, seed=tuple(SEEDS), quiet=True)]
    place = ("value", "mean") if algo == "dp_is" else ("mspbe", "value")
    values = [one.get(place[0], {}).get(place[1]) for one in made]
    errors = [abs(x - truth) for x in values if x is not None and math.isfinite(x)]
    quartiles = np.quantile(errors, [0.5, 0.25, 0.75]) if errors else [math.nan] * 3
    return [*(f"{x:.3g}" for x in quartiles), str(len(values) - len(errors))]


def draw(table: Path, path: Path) -> None:
    """Draw the table: a panel for each task, a line for each algorithm and number of users."""
    rows = [dict(zip(NAMES, row, strict=True)) for row in _read(table)[1:]]
    lines = [(n, algo) for n in SIZES for algo in LABELS]
    with style.figure(path, len(RANGES)) as places:
        for axes, task in zip(places, RANGES, strict=True):
            axes.set_yscale("log")
            style.epsilon_axis(axes, [float(e) for e in EPSILONS])
            axes.set_ylim(2e-4, 2.0)
            axes.set_title(TITLES[task])
            axes.set_ylabel("absolute error / value")
            for turn, (n, algo) in enumerate(lines):
                own = [
                    r for r in rows if (r["task"], r["users"], r["algo"]) == (task, str(n), algo)
                ]
                _line(axes, own, algo, n, (turn, len(lines)))
        style.legend(places)


def _line(
    axes: object, own: Sequence[dict[str, str]], algo: str, users: int, turn: tuple[int, int]
) -> None:
    """One line, relative to the true value."""
    x, error, low, high = (
        np.array([float(row[key]) for row in own]) for key in ("epsilon", "error", "low", "high")
    )
    from matplotlib.colors import to_rgb

    truth = float(own[0]["truth"])
    at = list(LABELS).index(algo)
    dash = "-" if users == max(SIZES) else "--"
    look = style.Look(to_rgb(style.PALETTE[at]), dash, style.MARKERS[turn[0]])
    ends = (low / truth, high / truth)
    style.dots(axes, look, f"{LABELS[algo]}, {users:,} users", x, error / truth, ends, turn)


def _read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


if __name__ == "__main__":
    main()
