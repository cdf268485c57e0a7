"""Compare PPO, SAC and DQN without privacy with Stable-Baselines3, at equal environment steps.

    pip install stable-baselines3
    python scripts/compare_sb3.py [--only cartpole/ppo/stable_baselines3] [--seeds 5] [--out FOLDER]

Writes `outputs/paper/checks/sb3/returns.csv`, one row a run, and `table.md`. A finished run is appended at
once, and a rerun skips the runs that are there; an interrupted run of privrl_bench resumes from its folder in
`--out`. Processes with different `--only` may run at the same time.

Each library has its own default hyperparameters. DQN is `algo=dqn_replay` in rounds of 100 steps: its default,
rounds of whole episodes, counts every episode at its longest. Steps are rounded down to whole rounds of both
libraries. The final evaluation has 50 episodes, unscaled rewards, and privrl_bench's kind of actions for the
algorithm. One thread. Wall seconds include the evaluation.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import importlib.util
import time
from pathlib import Path
from typing import NamedTuple

import gymnasium
import torch

import privrl_bench as pb
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.reporting.table_writer import ABSENT, compact, csv_text
from privrl_bench.training.provenance import processor

MISSING = "stable-baselines3 is not installed; pip install stable-baselines3"
RESULTS, EPISODES, FIRST_SEED = Path("outputs/paper/checks/sb3"), 50, 1000
OURS, THEIRS = LIBRARIES = ("privrl_bench", "stable_baselines3")
PACKAGES = ("torch", "numpy", "gymnasium")
NAMES = ("version", "return", "actions", "processor", *PACKAGES, "wall_seconds")
IDS = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1", "pendulum": "Pendulum-v1"}
DQN = ["algo=dqn_replay", "rounds=null", "env.user=segment", "env.user_steps=100"]
ROUND = {"ppo": 2048, "dqn": 100, "sac": 200}  # steps that whole rounds of both libraries take
ACTIONS = {"ppo": "drawn", "dqn": "drawn, epsilon 0.05", "sac": "greedy"}  # of the evaluation
STEPS = {
    "ppo": {"cartpole": 100_000, "acrobot": 200_000, "pendulum": 200_000},
    "dqn": {"cartpole": 100_000, "acrobot": 200_000},
    "sac": {"pendulum": 20_000},
}


class Case(NamedTuple):
    """One run, as the first columns of `returns.csv`."""

    task: str
    algorithm: str
    library: str
    seed: int
    steps: int


def main() -> None:
    """Make the runs that are missing, and the table."""
    parser = argparse.ArgumentParser(description="Compare with Stable-Baselines3.")
    parser.add_argument("--only", default="", help="a part of task/algorithm/library")
    parser.add_argument("--seeds", type=int, default=5, help="seeds, from 1000 on")
    parser.add_argument("--out", type=Path, default=Path("outputs/checks_sb3"), help="run folders")
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)  # results go to --out
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error(f"--seeds: must be an integer >= 1, got {args.seeds}")
    table = (args.out if args.steps else RESULTS) / "returns.csv"
    cases = [
        Case(task, algo, library, seed, max((args.steps or n) // ROUND[algo], 1) * ROUND[algo])
        for algo, tasks in STEPS.items()
        for task, n in tasks.items()
        for library in LIBRARIES
        if args.only in f"{task}/{algo}/{library}"
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds)
    ]
    if not cases:
        parser.error(
            f"--only: no task/algorithm/library has {args.only!r} in it, as acrobot/ppo has"
        )
    done = {tuple(row[name] for name in Case._fields) for row in _rows(table)}
    missing = [case for case in cases if tuple(map(str, case)) not in done]
    if any(c.library == THEIRS for c in missing) and not importlib.util.find_spec(THEIRS):
        parser.exit(2, f"error: {MISSING}\n")
    torch.set_num_threads(1)
    table.parent.mkdir(parents=True, exist_ok=True)
    for case in missing:
        steps, value, seconds = _ours(case, args.out) if case.library == OURS else _theirs(case)
        if steps != case.steps:
            raise RuntimeError(f"{case}: {steps} steps were taken")
        first, *others = map(importlib.metadata.version, (case.library, *PACKAGES))
        row = [first, value, ACTIONS[case.algorithm], processor(), *others, round(seconds, 2)]
        text = csv_text([*Case._fields, *NAMES], [[*case, *row]])
        with table.open("a", newline="", encoding="utf-8") as file:
            file.write(text if file.tell() == 0 else text.partition("\n")[2])
        print(*case, f"return {value:.1f}, {seconds:.1f} s", flush=True)
    table.with_name("table.md").write_text(_markdown(_rows(table)), encoding="utf-8")


def _ours(case: Case, out: Path) -> tuple[int, float, float]:
    """Train and evaluate in privrl_bench; return (steps, mean return, seconds)."""
    folder = out / str(case.steps) / f"{case.task}-{case.algorithm}-{case.seed}"
    words = DQN if case.algorithm == "dqn" else [f"algo={case.algorithm}"]
    words = [*words, f"env={case.task}", f"seed={case.seed}", "log=none"]
    words += [f"total_steps={case.steps}", f"eval.episodes={EPISODES}", "eval.every=0"]
    words += ["log.plot=false", "hardware.workers=1", f"hydra.run.dir={folder}"]
    found = pb.run(words, quiet=True)
    return found.summary["steps"], found.final_value, found.summary["wall_seconds"]


def _theirs(case: Case) -> tuple[int, float, float]:
    """Train and evaluate in Stable-Baselines3; return (steps, mean return, seconds)."""
    import stable_baselines3 as sb3
    from stable_baselines3.common import evaluation, monitor

    start = time.perf_counter()
    kind, name = getattr(sb3, case.algorithm.upper()), IDS[case.task]
    model = kind("MlpPolicy", name, seed=case.seed, device="cpu").learn(case.steps)
    env = monitor.Monitor(gymnasium.make(name))
    env.reset(seed=case.seed + 1_000_000)  # other episodes than in training
    greedy = ACTIONS[case.algorithm] == "greedy"
    value, _ = evaluation.evaluate_policy(model, env, EPISODES, greedy)
    return model.num_timesteps, float(value), time.perf_counter() - start


def _rows(table: Path) -> list[dict[str, str]]:
    """Read `returns.csv`; nothing if it is not there."""
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    return list(csv.DictReader(lines))


def _markdown(rows: list[dict[str, str]]) -> str:
    """Return the text of `table.md`."""
    groups: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for row in rows:
        key = (row["task"], row["algorithm"], row["steps"], row["actions"])
        groups.setdefault(key, {}).setdefault(row["library"], []).append(float(row["return"]))
    lines = [
        [*key, *(_cell(own.get(x, [])) for x in LIBRARIES)] for key, own in sorted(groups.items())
    ]
    versions = ", ".join(sorted({f"{r['library']} {r['version']}" for r in rows}))
    text = f"""Mean return of {EPISODES} episodes after training ± half width of the 95 % t interval over seeds
(number of seeds). Each library has its own default hyperparameters. Actions: those of the evaluation, drawn
from the policy or greedy. DQN is `algo=dqn_replay` in rounds of 100 steps. Versions: {versions}."""
    return f"{text}\n\n{compact(['task', 'algorithm', 'steps', 'actions', *LIBRARIES], lines)}\n"


def _cell(values: list[float]) -> str:
    if not values:
        return ABSENT
    mean, half = mean_ci(values)
    return f"{mean:.1f}{f' ± {half:.1f}' if len(values) > 1 else ''} ({len(values)})"


if __name__ == "__main__":
    main()
