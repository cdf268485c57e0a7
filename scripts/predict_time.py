"""Time and cost of a run on c cores, from measured shards: for runs that are too long to try.

    python scripts/predict_time.py [--users 1000000] [--rounds 1000] [--cores 2 16 64 256] [--price 0.05]
                                   [--shards 4] [--check 65536] [--out FILE] [words for privrl-bench]

`--shards` shards of a round are simulated, trained and added, in one process for each core of this machine at
the same time, and a few releases are made. A round of U users has ceil(U / shard) shards, which c workers
share, and one release. `--check U` then trains two rounds of U users with `hardware.workers=2` and compares
the second with the prediction. `--price`: of one core for an hour, in any currency.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.kernels.machine import cores, one_thread
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

DEFAULT = ["algo=dppg", "env=cartpole"]


def trainer(words: list[str], users: int, workers: int, rounds: int) -> Trainer:
    """Of a run of so many users a round."""
    more = [f"privacy.users_per_round={users}", f"rounds={rounds}", f"hardware.workers={workers}"]
    return Trainer(make_plan([compose([*words, *more, "log=none"])]))


def measure(words: list[str], users: int, shards: int) -> dict[str, float]:
    """Seconds of a shard and of the rest of a round (release, next state), and users of a shard."""
    session = trainer(words, users, 1, 2)
    size = session.collector.shape.users
    gate, actor = session.parts.gate, session.parts.algo.actor(session.state)
    whole = session.cohort(0)
    seconds = []
    for k in range(min(shards, math.ceil(users / size)) + 1):
        part = whole.part(k * size % users, min(k * size % users + size, users))
        start = time.perf_counter()
        session.work.run(session.state, actor, part, gate.empty_sum().add)
        seconds.append(time.perf_counter() - start)
    session.close()
    # A round of few users has the same release.
    session = trainer(words, 1, 1, 20)
    session.step()
    rest = []
    for _ in range(10):
        start = time.perf_counter()
        session.step()
        rest.append(time.perf_counter() - start)
    session.close()
    return {
        "shard_users": size,
        "shard_seconds": statistics.median(seconds[1:]),  # the first one compiles or loads kernels
        "release_seconds": statistics.median(rest),
    }


def measured(words: list[str], users: int, shards: int) -> dict[str, float]:
    """The medians of `measure` in one process for each core at the same time, as cores share memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), context, one_thread) as pool:
        each = [pool.submit(measure, words, users, shards) for _ in range(cores())]
        found = [one.result() for one in each]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def round_seconds(found: dict[str, float], users: int, cores: int) -> float:
    """Predicted time of a round."""
    shards = users / found["shard_users"]
    # The last shards do not come out even: half a shard on average, none if each core has one.
    waste = 0.5 if shards > cores else 0.0
    return (max(shards / cores, 1.0 if shards >= 1 else shards) + waste) * found[
        "shard_seconds"
    ] + found["release_seconds"]


def checked(words: list[str], users: int, found: dict[str, float]) -> dict[str, float]:
    """Predicted and measured time of a round on two cores."""
    session = trainer(words, users, 2, 2)
    seconds = []
    while not session.over:
        start = time.perf_counter()
        session.step()
        seconds.append(time.perf_counter() - start)
    session.close()
    predicted = round_seconds(found, users, 2)
    return {
        "users": users,
        "predicted": predicted,
        "measured": seconds[-1],
        "ratio": seconds[-1] / predicted,
    }


def main() -> None:
    """Measure, print a table, check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 16, 64, 256])
    parser.add_argument("--price", type=float, default=0.05, help="of a core for an hour")
    parser.add_argument("--shards", type=int, default=4, help="to measure")
    parser.add_argument("--check", type=int, default=0, help="users of a round that is measured")
    parser.add_argument("--out", type=Path, default=None, help="write the figures as JSON")
    arguments, words = parser.parse_known_args()
    one_thread()
    words = words or DEFAULT
    result: dict[str, Any] = {"words": words, **measured(words, arguments.users, arguments.shards)}
    size, seconds = result["shard_users"], result["shard_seconds"]
    print(
        f"one shard of {size:.0f} users: {seconds:.2f} s; release and next state: "
        f"{1e3 * result['release_seconds']:.1f} ms"
    )
    print("cores   a round   the run   core hours    cost")
    result["runs"] = []
    for count in arguments.cores:
        one = round_seconds(result, arguments.users, count)
        hours = one * arguments.rounds / 3600
        row = {
            "cores": count,
            "round_seconds": one,
            "hours": hours,
            "cost": hours * count * arguments.price,
        }
        result["runs"].append(row)
        print(f"{count:5d} {one:7.1f} s {hours:7.1f} h {hours * count:12.0f} {row['cost']:7.0f}")
    if arguments.check:
        result["check"] = found = checked(words, arguments.check, result)
        print(
            f"check: a round of {found['users']} users on 2 cores: predicted {found['predicted']:.1f} s, "
            f"measured {found['measured']:.1f} s, ratio {found['ratio']:.2f}"
        )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
