"""kill -9 of a worker and of the run, ten times at random moments: the same bits. With Ray, if it is there."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

WORDS = [
    *("algo=dppg", "env=acrobot", "rounds=400", "privacy.users_per_round=32", "privacy.z=2"),
    *("algo.hidden=[8]", "algo.epochs=2", "env.user_steps=32", "log=none", "eval.episodes=1"),
    *("eval.every=20_000", "log.plot=false", "log.progress=false"),
]
PRIVATE = ("train/return_mean", "train/entropy", "train/critic_error")


def start(folder, *words):
    where = [f"hydra.run.dir={folder}"]
    return subprocess.Popen(
        [sys.executable, "-m", "privrl_bench.cli.train", *WORDS, *words, *where],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def children(pid):
    """Processes below this one, as Linux has them."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += [int(child), *children(child)]
    return found


def is_worker(pid):
    """A process of the pool, or an actor of Ray."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text()
        return "spawn_main" in words or words.startswith("ray::ShardWorker")
    except OSError:
        return False


def essence(folder):
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: x for k, x in row.items() if k not in PRIVATE} for row in rows]
    lines = [json.loads(x) for x in (folder / "ledger.jsonl").read_text().splitlines()]
    actor = torch.load(folder / "policy.pt", weights_only=True)["actor"]
    return rows, [(x["round"], x["attempt"], x.get("digest")) for x in lines], actor


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_whoever_is_killed_the_bits_stay(tmp_path, engine):
    if importlib.util.find_spec(engine) is None and engine == "ray":
        pytest.skip("ray is not installed")
    words = ("hardware.workers=2", f"hardware.engine={engine}")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(whole, "hardware.workers=1").wait(timeout=300) == 0
    draw, killed = random.Random(0), {"worker": 0, "run": 0}
    for place in range(10):
        process = start(cut, *words)
        victim = "run" if place % 2 else "worker"
        deadline = time.time() + 60
        while time.time() < deadline and process.poll() is None:
            workers = [k for k in children(process.pid) if is_worker(k)]
            lines = cut / "ledger.jsonl"
            begun = lines.exists() and lines.read_bytes().count(b"\n") > 40 * place
            if workers and begun:
                time.sleep(draw.random() * 0.3)
                target = process.pid if victim == "run" else draw.choice(workers)
                try:
                    os.kill(target, signal.SIGKILL)
                    killed[victim] += 1
                except ProcessLookupError:
                    continue
                break
            time.sleep(0.01)
        if victim == "worker" and process.poll() is None:
            time.sleep(1.0)
            process.kill()
        process.wait()
    assert min(killed.values()) >= 3, f"too fast to be killed: {killed}"
    assert start(cut, *words).wait(timeout=300) == 0
    one, other = essence(whole), essence(cut)
    assert one[0] == other[0]
    assert one[1] == other[1]
    assert torch.equal(one[2], other[2])
