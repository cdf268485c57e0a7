"""Speed of rounds whose users are simulated on a device, beside their physics alone and the CPU.

    python scripts/bench_gpu.py --envs cartpole hopper [--device cuda] [--users 8192] [--steps 512]

Medians of `--repeats` measurements in turn, in environment steps per second (`--out FILE`: as JSON):

- worlds: the environments alone (env.backend=torch, or warp); slots: those of env.backend=auto, on one core.
- round: a whole round of DPPG, and the shares of its parts; on one core: 64 users with env.backend=auto.
- C on n cores: MuJoCo's own threads (`mujoco.rollout`), for environments of MuJoCo. `--threads 1 16`.
- Warp: MuJoCo Warp's own benchmark (`mujoco_warp.testspeed`, on a GPU only) with as many worlds: `--testspeed`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import rollout

from privrl_bench.composition.compose import compose
from privrl_bench.envs.backends import TENSOR, gym_id
from privrl_bench.envs.registry import make_env, make_slots, make_worlds
from privrl_bench.envs.worlds import LANES
from privrl_bench.kernels.machine import one_thread
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer


def settings(env: str, device: str, users: int, steps: int, backend: str) -> Any:
    """A run of DPPG."""
    hardware = "gpu" if device == "cuda" else "cpu"
    where = (f"env={env}", f"env.backend={backend}", f"hardware={hardware}", "hardware.workers=1")
    size = (f"privacy.users_per_round={users}", f"env.user_steps={steps}")
    return compose(["algo=dppg", *where, *size, "rounds=1_000_000", "privacy.z=1", "eval.every=0"])


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


class Alone:
    """The environments of a run, worlds or slots, with constant random actions."""

    def __init__(self, config: Any, device: str):
        users = -(-config.privacy.users_per_round // LANES) * LANES
        self._device, self._count = device, users * config.env.user_steps
        self._steps = range(config.env.user_steps)
        space = make_env(config.env).action_space
        actions = np.stack([space.sample() for _ in range(users)])
        self._reset: Callable[[], object]
        self._step: Callable[[], object]
        if config.env.backend == "auto":
            slots, everyone_ = make_slots(config.env, users), np.arange(users)
            self._reset = lambda: slots.reset(everyone_, everyone_.tolist())
            self._step = lambda: slots.step(everyone_, actions)
        else:
            worlds, there = make_worlds(config.env, users, device), torch.from_numpy(actions)
            there, everyone = there.to(device), torch.ones(users, dtype=torch.bool, device=device)
            uniforms = torch.rand(worlds.draws, users, device=device)
            self._reset = lambda: worlds.reset(everyone, uniforms)
            self._step = lambda: (worlds.step(there), worlds.observe())

    def run(self) -> float:
        """Steps a second, resets not counted."""
        self._reset()
        wait(self._device)
        start = time.perf_counter()
        for _ in self._steps:
            self._step()
        wait(self._device)
        return self._count / (time.perf_counter() - start)


class Round:
    """Whole rounds, and the time of their parts."""

    def __init__(self, config: Any, device: str):
        self._device = device
        self._trainer = Trainer(make_plan([config]))
        self._steps = self._trainer.parts.round_steps
        self.shares: dict[str, list[float]] = defaultdict(list)
        self._spent: dict[str, float] = defaultdict(float)
        self._time(self._trainer.collector, "collect", "acting")
        self._time(self._trainer.parts.algo, "user_update", "training")
        self._time(self._trainer.parts.gate, "add", "clip and sum")

    def _time(self, owner: Any, method: str, name: str) -> None:
        real = getattr(owner, method)

        def timed(*args: Any) -> Any:
            wait(self._device)
            start = time.perf_counter()
            found = real(*args)
            wait(self._device)
            self._spent[name] += time.perf_counter() - start
            return found

        setattr(owner, method, timed)

    def run(self) -> float:
        """Steps a second."""
        self._spent.clear()
        start = time.perf_counter()
        self._trainer.step()
        wait(self._device)
        spent = time.perf_counter() - start
        for name, seconds in self._spent.items():
            self.shares[name].append(seconds / spent)
        return self._steps / spent


def simulator(env: str) -> tuple[Any, int]:
    """MuJoCo's model, and simulator steps of one environment step."""
    inner: Any = make_env(compose([f"env={env}", "algo=dppg"]).env).unwrapped
    model = inner.model if hasattr(inner, "model") else inner._env.physics.model._model
    return model, getattr(inner, "frame_skip", 1)


class Threads:
    """MuJoCo's own threads, with constant controls."""

    def __init__(self, env: str, threads: int):
        self._model, self._skip = simulator(env)
        self._data = [mujoco.MjData(self._model) for _ in range(threads)]
        full = mujoco.mjtState.mjSTATE_FULLPHYSICS
        state = np.zeros(mujoco.mj_stateSize(self._model, full))
        mujoco.mj_getState(self._model, self._data[0], state, full)
        self._states = np.tile(state, (16 * threads, 1))
        shape = (16 * threads, 200 * self._skip, self._model.nu)
        self._controls = np.random.default_rng(0).uniform(-1, 1, shape)
        self._threads = rollout.Rollout(nthread=threads if threads > 1 else 0)

    def run(self) -> float:
        """Environment steps a second."""
        start = time.perf_counter()
        self._threads.rollout(self._model, self._data, self._states, self._controls)
        return self._controls.shape[0] * 200 / (time.perf_counter() - start)


def testspeed(env: str, users: int, device: str) -> float:
    """Environment steps a second by MuJoCo Warp's own benchmark."""
    model, skip = simulator(env)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.mjb"
        mujoco.mj_saveModel(model, str(file))
        words = (f"--nworld={users}", "--nstep=100", f"--device={device}", "--format=short")
        command = [sys.executable, "-m", "mujoco_warp.testspeed", str(file), *words]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"steps_per_second: ([\d.e+]+)", out)[0]) / skip


def measured(env: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Medians of one environment."""
    torch_ = gym_id(compose([f"env={env}", "algo=dppg"]).env) in TENSOR
    config = settings(env, asked.device, asked.users, asked.steps, "torch" if torch_ else "warp")
    whole = Round(config, asked.device)
    core = settings(env, "cpu", 64, asked.steps, "auto")
    auto = settings(env, "cpu", asked.users, asked.steps, "auto")
    runs: dict[str, Callable[[], float]] = {
        f"worlds, {config.env.backend}": Alone(config, asked.device).run,
        "slots, auto": Alone(auto, "cpu").run,
        "round": whole.run,
        "round on one core, 64 users": Round(core, "cpu").run,
    }
    if not torch_:
        for threads in asked.threads:
            runs[f"C simulator, {threads} threads"] = Threads(env, threads).run
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs.values():  # compiles
        run()
    whole.shares.clear()
    for _ in range(asked.repeats):
        for name, run in runs.items():
            found[name].append(run())
    if not torch_ and asked.testspeed:
        found["Warp's own benchmark"] = [testspeed(env, asked.users, asked.device)]
    speeds = {name: statistics.median(each) for name, each in found.items()}
    shares = {name: statistics.median(each) for name, each in whole.shares.items()}
    return {"steps_per_second": speeds, "shares_of_a_round": shares}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", nargs="+", default=["cartpole", "hopper"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--users", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--testspeed", action="store_true", help="Warp's own, on a GPU")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    one_thread()
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    report: dict[str, Any] = {"device": name, "users": asked.users, "steps": asked.steps}
    for env in asked.envs:
        found = report[env] = measured(env, asked)
        print(f"{env}: {asked.users} users of {asked.steps} steps on {name}")
        for what, speed in found["steps_per_second"].items():
            print(f"  {what:32}{speed:14,.0f} steps/s")
        for what, share in found["shares_of_a_round"].items():
            print(f"  share of the round, {what:12}{share:14.0%}")
        if asked.out:
            asked.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
