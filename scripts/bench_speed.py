"""Where the time and the memory of training go, and how they grow; everything measured in one run.

    python scripts/bench_speed.py [--envs cartpole hopper halfcheetah] [--repeats 5] [--seconds 4]
                                  [--replicas 1 4 16 64] [--users 8 32 128] [--no-sweep]
                                  [--out outputs/paper/speed]

1. For each environment, pieces of about `--seconds` alternate: Gymnasium's environments stepped in a plain loop
   with the actions of an untrained policy, nothing learned; our slots stepped in the same way; whole DPPG
   rounds.
2. A real run of each, files and evaluations included, whose parts are timed.
3. CartPole with R replicas of U users: steps per second and peak memory, each in a process of its own.
4. A sweep of 16 CartPole runs through the command line: as one program, and job by job.

Medians over the repeats are printed; on shared machines ratios of neighbours say more than speeds. One
thread. Writes speed.json and speed.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.algorithms.policy_gradient.critics import PrivateCritic, SharedCritic
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import make_env, make_slots
from privrl_bench.evaluation.evaluator import BackgroundEvaluator
from privrl_bench.papers.pages.speed import picture
from privrl_bench.privacy.gate import Gate
from privrl_bench.training.loop import Experiment
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.training.results import MetricWriter
from privrl_bench.training.runner import run
from privrl_bench.training.trainer import Trainer
from privrl_bench.users.collectors.live import SimulatedCollector

FOREVER = "total_steps=1_000_000_000"
SWEEP = ("privacy.z=1,3", "seed=range(8)", "total_steps=200_000", "log.progress=false")


# --- 1. speeds


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
    """Whole training rounds of a session, ledger on disk included, evaluations not."""

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


def in_turn(loops: dict[str, Any], repeats: int, seconds: float) -> dict[str, list[float]]:
    """Steps per second of each loop, `repeats` times in turn, each about `seconds` long."""
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
    return speeds


def bench_env(env: str, repeats: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Speeds of one environment, alone and in training, and their ratios to the plain loop."""
    words = ["algo=dppg", f"env={env}"]
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
    speeds = in_turn(loops, repeats, seconds)
    base = speeds["gymnasium"]
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


# --- 2. shares

# part -> what it spends its time in; a part inside another is taken off the outer one
PARTS: dict[str, list[tuple[Any, str]]] = {
    "rollout": [(SimulatedCollector, "collect")],
    "user updates": [(Dppg, "user_update")],
    "critic": [
        (c, name) for c in (PrivateCritic, SharedCritic) for name in ("values", "user_update")
    ],
    "gate and ledger": [(Gate, "add"), (Gate, "release")],
    "accounting": [(Gate, "spent_epsilon"), (Gate, "planned_epsilon")],
    "evaluation": [(BackgroundEvaluator, "begin"), (BackgroundEvaluator, "take")],
    "logging": [(MetricWriter, "write"), (Experiment, "row"), (Experiment, "_checkpoint")],
    "end of run": [(Experiment, "_finish")],
}


@contextmanager
def timed(parts: dict[str, list[tuple[Any, str]]]) -> Iterator[dict[str, float]]:
    """Seconds that each part spends in itself, added up while the block runs."""
    spent = dict.fromkeys(parts, 0.0)
    inner = [0.0]  # a stack: time already counted inside the current call
    undo: list[Callable[[], None]] = []

    def wrap(owner: Any, name: str, part: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            inner.append(0.0)
            start = time.perf_counter()
            try:
                return real(*args, **kwargs)
            finally:
                whole = time.perf_counter() - start
                spent[part] += whole - inner.pop()
                inner[-1] += whole

        setattr(owner, name, call)
        undo.append(lambda: setattr(owner, name, real))

    for part, places in parts.items():
        for owner, name in places:
            wrap(owner, name, part)
    try:
        yield spent
    finally:
        for restore in undo:
            restore()


def shares(env: str, seconds: float, speed: float, folder: Path) -> dict[str, float]:
    """Shares of the wall time of a run that lasts about `seconds`, its set-up apart."""
    steps = max(20_000, int(seconds * speed))
    words = ["algo=dppg", f"env={env}", f"total_steps={steps}", "log.progress=false"]
    config = compose([*words, "log=none", "log.plot=true", "hardware.workers=1"])
    started = [0.0]
    real = Experiment.run

    def begin(self: Experiment, *args: Any) -> Any:
        started[0] = time.perf_counter()
        spent.update(dict.fromkeys(spent, 0.0))  # what set-up took
        return real(self, *args)

    Experiment.run = begin  # type: ignore[method-assign, assignment]
    try:
        with timed(PARTS) as spent:
            (result,) = run([config], [folder / f"run {env}"], [words])
    finally:
        Experiment.run = real  # type: ignore[method-assign]
    if result.status != "done":
        raise RuntimeError(f"the run ended as {result.status}: {result.reason}")
    whole = time.perf_counter() - started[0]
    found = {part: value / whole for part, value in spent.items()}
    return found | {"rest": 1.0 - sum(found.values())}


# --- 3. scaling


def memory_now() -> int:
    """Resident bytes; the peak is counted from here where the system allows it (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def memory_peak() -> int:
    """Largest resident size since `memory_now`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux: the peak since the start, so that differences are lower bounds
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def point(replicas: int, users: int, seconds: float) -> dict[str, float]:
    """In this process: speed and peak memory of `replicas` times `users`, above that of the imports."""
    words = ["algo=dppg", "env=cartpole", f"privacy.users_per_round={users}"]
    with tempfile.TemporaryDirectory() as folder:
        Rounds([*words[:2], "privacy.users_per_round=1"], Path(folder)).run(1)
        before = memory_now()
        rounds = Rounds(words, Path(folder), replicas)
        speeds = in_turn({"it": rounds}, 3, seconds)["it"]
        memory = memory_peak() - before
        user_steps = rounds.parts.round_steps * replicas
    return {
        "replicas": replicas,
        "users": users,
        "steps": rounds.parts.steps,
        "steps_per_second": statistics.median(speeds),
        "bytes": memory,
        "bytes_per_user_step": memory / user_steps,
    }


def scaling(replicas: list[int], users: list[int], seconds: float) -> list[dict[str, float]]:
    """`point` for all pairs, each in a fresh process."""
    found = []
    for u in users:
        for r in replicas:
            words = [sys.executable, __file__, "--point", str(r), str(u), "--seconds", str(seconds)]
            answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            found.append(json.loads(answer.splitlines()[-1]))
            one = found[-1]
            print(
                f"  R {r:3d}  U {u:4d}  {one['steps_per_second']:8.0f} steps/s"
                f"  {one['bytes'] / 2**20:7.0f} MiB  {one['bytes_per_user_step']:6.0f} bytes a user step",
                flush=True,
            )
    return found


# --- 4. a sweep


def sweep(repeats: int) -> dict[str, Any]:
    """Wall seconds of the same jobs through the command line: as one program, and one at a time."""
    ways = {"one program": [], "one at a time": ["hydra/launcher=basic"]}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    steps = 0
    for _ in range(repeats):
        for name, extra in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                words = ["-m", "algo=dppg", "env=cartpole", *SWEEP, *extra]
                start = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-m", "privrl_bench.cli.train", *words],
                    cwd=folder,
                    env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
                    capture_output=True,
                    text=True,
                )
                seconds[name].append(time.perf_counter() - start)
                if done.returncode:
                    raise RuntimeError(done.stdout + done.stderr)
                steps = sum(int(n) for n in re.findall(r"(\d+) steps in", done.stdout))
    faster = [b / a for a, b in zip(*seconds.values(), strict=True)]
    return {
        "words": list(SWEEP),
        "cores": len(os.sched_getaffinity(0)),
        "steps": steps,
        "seconds": {name: statistics.median(found) for name, found in seconds.items()},
        **ratio(faster),
    }


# --- report


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=["cartpole", "hopper", "halfcheetah"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--users", nargs="*", type=int, default=[8, 32, 128])
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("outputs/paper/speed"))
    parser.add_argument("--point", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.point:
        print(json.dumps(point(arguments.point[0], arguments.point[1], arguments.seconds)))
        return
    found: dict[str, Any] = {"torch": torch.__version__, "speeds": {}, "shares": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for env in arguments.envs:
            rows = bench_env(env, arguments.repeats, arguments.seconds, folder)
            found["speeds"][env] = rows
            print(f"{env}: steps/s, and beside a plain Gymnasium loop that learns nothing")
            for label, row in rows.items():
                low, high = row["ratio_range"]
                print(
                    f"  {label:32s} {row['steps_per_second']:9.0f}"
                    f"   {row['ratio']:6.2f} ({low:.2f} to {high:.2f})",
                    flush=True,
                )
        print("shares of the wall time of a run, evaluations and files included")
        for env in arguments.envs:
            speed = found["speeds"][env]["dppg"]["steps_per_second"]
            row = shares(env, 4 * arguments.seconds, speed, folder)
            found["shares"][env] = row
            print(
                f"  {env:12s}" + "  ".join(f"{part} {x:.1%}" for part, x in row.items()), flush=True
            )
    print("CartPole, R replicas of U users, T = 64")
    found["scaling"] = scaling(arguments.replicas, arguments.users, arguments.seconds / 2)
    if not arguments.no_sweep:
        found["sweep"] = one = sweep(max(1, arguments.repeats // 2))
        each = ", ".join(f"{name} {value:.0f} s" for name, value in one["seconds"].items())
        print(
            f"a sweep of 16 CartPole runs on {one['cores']} cores ({one['steps']} steps): {each}; "
            f"{one['ratio']:.2f} times as fast, {one['steps'] / one['seconds']['one program']:.0f} steps/s"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "speed.json").write_text(json.dumps(found, indent=2) + "\n")
    picture(found, arguments.out)
    print(f"look at {arguments.out}/speed.svg")


if __name__ == "__main__":
    main()
