"""Returns of policies learned from logs, and estimates of their values from the same logs: a row of each.

python scripts/learn_from_logs.py docs/results/logs.csv work cartpole --policies poor better --seeds 1000 1001

`returns` are greedy, of 100 episodes. `values` are of the policy of `of` at epsilon 1, as it acts by default,
at gamma 0.99, beside the mean discounted return of 10,000 of its own users, `truth`.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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
LEARNERS = dict.fromkeys(("dp_bc", "dp_lspi", "dp_cql"), EPSILONS) | {"primorl": ("1",)}
VALUED = ("dp_bc", "dp_cql")
# Public ranges of discounted returns, with room for weighted ones.
RANGES = {
    "cartpole": ["algo.center=50", "privacy.clip=100"],
    "acrobot": ["algo.center=-50", "privacy.clip=100"],
    "dosing0": ["algo.center=0", "privacy.clip=200"],
}
# The logs are imported with 500 steps, an upper bound; `dp_fqe` counts all steps of an episode.
STEPS = {"dosing0": ["env.max_episode_steps=143"]}
ESTIMATORS = {
    "dp_is": lambda task: ["algo=dp_is", *RANGES[task]],
    "dp_is, weighted": lambda task: ["algo=dp_is", "algo.estimator=weighted", *RANGES[task]],
    "dp_fqe": lambda task: ["algo=dp_fqe", *STEPS.get(task, [])],
    "dp_lstd": lambda task: ["algo=dp_lstd", "algo.features=linear"],
    "gpope": lambda task: ["algo=gpope", "algo.features=linear"],
}
NAMES = ["task", "seed", "algo", "epsilon", "number", "of", "truth"]


def main() -> None:
    """Add the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--policies", nargs="+", required=True, help="of make_logs.py")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    args = parser.parse_args()
    policies = [str(Path(p).resolve()) if Path(p).exists() else p for p in args.policies]
    out = args.out.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    os.chdir(args.work)
    os.environ["MINARI_DATASETS_PATH"] = str(Path("datasets").resolve())
    for seed in args.seeds:
        name = f"{args.task}/seed{seed}-v1"
        logs = _logs(args.task, seed, policies, name)
        jobs: list[tuple[tuple[str, str, str], Callable[[], list[str]]]] = []
        jobs.append((("behaviour", "-", ""), partial(_number, logs)))
        for algo, epsilons in LEARNERS.items():
            for x in epsilons:
                jobs.append(((algo, x, ""), partial(_return, args.task, algo, x, seed, name)))
        for of in VALUED:
            for estimator in ESTIMATORS:
                valued = partial(_value, args.task, estimator, of, seed, name)
                jobs.append(((estimator, "1", of), valued))
        for key, job in jobs:
            if _missing(out, [args.task, str(seed), *key]):
                _add(out, [args.task, str(seed), *key[:2], *job()])


def _missing(out: Path, key: list[str]) -> bool:
    return not out.exists() or key not in [
        [*row[:4], row[5]] for row in csv.reader(out.open(newline=""))
    ]


def _add(out: Path, row: list[str]) -> None:
    """Add a row; other processes may do so, too."""
    with out.open("a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([row] if file.tell() else [NAMES, row])
    print(*row, flush=True)


def _number(found: float) -> list[str]:
    """The columns of a number that is no estimate."""
    return [f"{found:.2f}", "", ""]


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


def _learned(task: str, algo: str, epsilon: str, seed: int, name: str) -> str:
    """The folder of what is learned."""
    noise = "privacy.z=0" if epsilon == "inf" else f"privacy.epsilon={epsilon}"
    words = [f"algo={algo}", "env=logs", f"data.id={name}", noise, f"seed={seed}", "log=none"]
    return str(pb.run([*words, "eval.every=0"], quiet=True).folder)


def _return(task: str, algo: str, epsilon: str, seed: int, name: str) -> list[str]:
    """Greedy return over 100 episodes."""
    folder = _learned(task, algo, epsilon, seed, name)
    return _number(pb.evaluate(folder, env=TASKS[task], greedy=True, episodes=100).mean)


def _value(task: str, estimator: str, of: str, seed: int, name: str) -> list[str]:
    """The estimate of a value at epsilon 1, empty if there is none; whose; and the truth."""
    policy = _learned(task, of, "1", seed, name)
    same = [f"seed={seed}", "log=none", "algo.gamma=0.99"]
    own = [*TASKS[task], f"data.policy='{policy}'", "privacy.population=10000", "privacy.z=0"]
    truth = pb.run(["algo=dp_is", *own, *RANGES[task], *same], quiet=True).summary["value"]["mean"]
    words = [*ESTIMATORS[estimator](task), "env=logs", f"data.id={name}", *same]
    try:
        target = [f"algo.target='{policy}'", "privacy.epsilon=1"]
        summary = pb.run([*words, *target], quiet=True).summary
        place = summary["value"]["mean"] if "value" in summary else summary["mspbe"]["value"]
        found = f"{place:.5g}"
    except pb.RunInterrupted:
        raise
    except pb.RunFailed:  # the logs do not cover the policy
        found = ""
    return [found, of, f"{truth:.5g}"]


if __name__ == "__main__":
    main()
