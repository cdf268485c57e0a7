"""Searches on CartPole and Pendulum: returns and true epsilons of four ways to choose hyperparameters.

    python scripts/tuning_table.py run DIR      run the searches, or resume them (run folders in DIR)
    python scripts/tuning_table.py write DIR    write outputs/paper/dppg/tuning/ from them

Ways, each with the same users, at a printed epsilon of 4:

- default: one run of the shipped values;
- private: 8 runs in the mean, logarithmic distribution, scored by private users; epsilon covers the search;
- poisson: the same with a Poisson number of runs;
- disjoint: the same search on 20 % of the users, whose best settings the others train;
- ignored: 8 runs on the same users, each at epsilon 4, the best of them by its public score. The printed
  epsilon is that of one run, the true one that of all.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

import privrl_bench as pb
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon

ITEM = Path("outputs/paper/dppg/tuning")
SEARCHES = range(5)
TASKS = {
    "cartpole": ("1000", "tune.score_range=[0,500]"),
    "pendulum": ("10000", "tune.score_range=[-1800,0]"),
}
SPACES = {
    "cartpole": [
        "algo.lr=loguniform(5e-4,2e-2)",
        "privacy.clip=loguniform(0.05,1.6)",
        "privacy.users_per_round=choice(8,16,32,64)",
    ],
    "pendulum": [
        "algo.lr=loguniform(5e-4,2e-2)",
        "privacy.clip=loguniform(0.25,8)",
        "privacy.users_per_round=choice(32,64,128,256)",
    ],
}
WAYS = ("default", "private", "poisson", "disjoint", "ignored")
NAMES = {
    "default": "default values, no search",
    "private": "private search, `logarithmic(8)`",
    "poisson": "private search, `poisson(8)`",
    "disjoint": "search on 20 % of the users, `logarithmic(8)`",
    "ignored": "eight runs on the same users, ignored",
}
COLUMNS = ["env", "way", "seed", "users", "return", "printed", "epsilon", "status", "kept"]


def run_all(root: Path) -> None:
    """Run every search that is not done."""
    for env, (users, span) in TASKS.items():
        common = (
            f"algo=dppg env={env} privacy.population={users} eval.episodes=50 eval.every=0 log=none"
        )
        search = [*common.split(), "privacy.epsilon=4", *SPACES[env]]
        for seed in SEARCHES:
            place = [f"seed={seed}", "hardware.workers=1"]
            where = {way: f"hydra.run.dir={root}/{env}/{way}/{seed}" for way in WAYS}
            pb.run([*common.split(), "privacy.epsilon=4", *place, where["default"]], quiet=True)
            law = "tune.runs=logarithmic(8)"
            pb.tune([*search, law, span, *place, where["private"]], quiet=True)
            pb.tune([*search, "tune.runs=poisson(8)", span, *place, where["poisson"]], quiet=True)
            pb.tune([*search, law, span, "tune.users=0.2", *place, where["disjoint"]], quiet=True)
            z = pb.load_run(root / env / "default" / str(seed)).summary["z"]
            habit = [word for word in search if "epsilon" not in word] + [f"privacy.z={z}"]
            habit += ["tune.runs=fixed(8)", "tune.score=public"]
            pb.tune([*habit, *place, where["ignored"]], quiet=True)
            print(env, seed, flush=True)


def row_of(root: Path, env: str, way: str, seed: int) -> dict[str, Any]:
    """One row of searches.csv."""
    summary = pb.load_run(root / env / way / str(seed)).summary
    searched = summary.get("search", {})
    printed = searched.get("epsilon_without_tuning") if way == "ignored" else summary["epsilon"]
    return {
        "env": env,
        "way": way,
        "seed": seed,
        "users": TASKS[env][0],
        "return": round(summary["return"]["mean"], 3),
        "printed": round(printed, 4),
        "epsilon": round(summary["epsilon"], 4),
        "status": summary["guarantee"]["status"],
        "kept": " ".join(searched.get("kept", [])),
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown, from the rows of searches.csv."""
    lines = [
        "| task | users | chosen by | searches | return (95 % t) | worst | printed epsilon | true epsilon |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for env in TASKS:
        for way in WAYS:
            some = [row for row in rows if (row["env"], row["way"]) == (env, way)]
            if not some:
                continue
            returns = np.array([float(row["return"]) for row in some])
            mean, half = mean_ci(returns)
            printed, true = (
                shown_epsilon(max(float(row[name]) for row in some))
                for name in ("printed", "epsilon")
            )
            lines.append(
                f"| {env} | {int(some[0]['users']):,} | {NAMES[way]} | {len(some)} | {mean:.1f} ± {half:.1f} | "
                f"{returns.min():.1f} | {printed} | {true} |"
            )
    return "\n".join(lines) + "\n"


def write(root: Path) -> None:
    """Write searches.csv and table.md."""
    rows = [
        row_of(root, env, way, seed)
        for env in TASKS
        for way in WAYS
        for seed in SEARCHES
        if (root / env / way / str(seed) / "summary.json").exists()
    ]
    ITEM.mkdir(parents=True, exist_ok=True)
    with (ITEM / "searches.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (ITEM / "table.md").write_text(table_of(rows))


if __name__ == "__main__":
    {"run": run_all, "write": write}[sys.argv[1]](Path(sys.argv[2]))
