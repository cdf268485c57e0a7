"""Returns of policies that are learned from logs: a row for each task, seed, algorithm and epsilon.

python scripts/learn_from_logs.py out.csv work cartpole --policies poor better --seeds 10 11
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import privrl_bench as pb

LEVELS = "env.wrappers=[{name: gymnasium.wrappers:DiscretizeAction, bins: 5}]"
TASKS = {
    "cartpole": ["env=cartpole"],
    "acrobot": ["env=acrobot"],
    "dosing0": ["env=dosing0", LEVELS],
}
EPSILONS = ("1", "3", "10", "inf")
NAMES = ["task", "seed", "algo", "epsilon", "return"]


def main() -> None:
    """Add the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--policies", nargs="+", required=True, help="of make_logs.py")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    args = parser.parse_args()
    policies, out = (
        [str(Path(p).resolve()) if Path(p).exists() else p for p in args.policies],
        args.out.resolve(),
    )
    args.work.mkdir(parents=True, exist_ok=True)
    os.chdir(args.work)
    os.environ["MINARI_DATASETS_PATH"] = str(Path("datasets").resolve())
    there = list(csv.reader(out.open())) if out.exists() else [NAMES]
    for seed in args.seeds:
        name = f"{args.task}/seed{seed}-v1"
        for algo in ("behaviour", "dp_bc", "dp_lspi"):
            for epsilon in EPSILONS if algo != "behaviour" else ("-",):
                key = [args.task, str(seed), algo, epsilon]
                if any(row[:4] == key for row in there):
                    continue
                logs = _logs(args.task, seed, policies, name)
                found = (
                    logs if algo == "behaviour" else _learned(args.task, algo, epsilon, seed, name)
                )
                there.append([*key, f"{found:.2f}"])
                with out.open("w", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerows(there)
                print(*there[-1], flush=True)


def _logs(task: str, seed: int, policies: list[str], name: str) -> float:
    """Mean return of the logs, which are made and imported if they are not there."""
    file = Path(f"{task}{seed}.parquet")
    if not file.exists():
        maker = Path(__file__).with_name("make_logs.py")
        words = [*policies, "--env", *TASKS[task], "--users", "10101", "--seed", str(seed)]
        subprocess.run([sys.executable, str(maker), str(file), *words], check=True)
    import pyarrow.parquet as parquet

    table = parquet.read_table(file)
    if not Path(os.environ["MINARI_DATASETS_PATH"], name).exists():
        columns = [one for one in table.column_names if one.startswith("o")]
        names = {"user": "user", "order": "t", "obs": columns, "act": "action", "reward": "reward"}
        ends = {"done": "end", "truncated": "cut", "behavior_prob": "p"}
        said = {"users": "simulated", "steps": 500, "last_observation": "repeat"}
        pb.import_logs(table, name=name, **names, **ends, **said)
    users = table["user"].to_numpy()
    return float(np.sum(table["reward"].to_numpy()) / len(np.unique(users)))


def _learned(task: str, algo: str, epsilon: str, seed: int, name: str) -> float:
    """Greedy return over 100 episodes of what is learned."""
    noise = "privacy.z=0" if epsilon == "inf" else f"privacy.epsilon={epsilon}"
    words = [f"algo={algo}", "env=logs", f"data.id={name}", noise, f"seed={seed}", "log=none"]
    run = pb.run([*words, "eval.every=0"], quiet=True)
    return pb.evaluate(run.folder, env=TASKS[task], greedy=True, episodes=100).mean


if __name__ == "__main__":
    main()
