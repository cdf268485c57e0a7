"""Rounds of training on a GPU against the same rounds on the CPU, in turn.

    python scripts/bench_gpu.py [--rounds 5] [--device cuda] [--data ID] [CASE ...]

Prints for each case the median seconds of a round on both, and their ratio. The first round of each, which
compiles and fills caches, is left out. `--data` is a local Minari dataset of Pendulum for the cases of PriMORL.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

CASES = {
    "dppg hopper": "algo=dppg env=hopper",
    "dppg hopper, 256 x 256": "algo=dppg env=hopper algo.hidden=[256,256]",
    "dppg halfcheetah, 512 users": "algo=dppg env=halfcheetah privacy.users_per_round=512 "
    "total_steps=10_000_000",
    "dppg cartpole, 1024 users": "algo=dppg env=cartpole privacy.users_per_round=1024 total_steps=10_000_000",
    "ppo halfcheetah": "algo=ppo env=halfcheetah",
    "text, 128 users": "algo=dppg_text env=sentiment_small",
    "text, 512 users": "algo=dppg_text env=sentiment_small privacy.users_per_round=512",
    "primorl pendulum": "algo=primorl env=pendulum data.id={data} data.public=0.1 rounds=20",
    "primorl pendulum, 256 x 4": "algo=primorl env=pendulum data.id={data} data.public=0.1 rounds=20 "
    "algo.model_hidden=[256,256,256,256]",
}
QUIET = ("eval.every=0", "log=none", "log.plot=false", "log.progress=false")


def trainer(words: str, device: str) -> Trainer:
    """A run on a device after its first round."""
    config = compose([*words.split(), *QUIET, f"hardware.device={device}", "hardware.workers=1"])
    one = Trainer(make_plan([config]))
    one.step()
    return one


def seconds(one: Trainer) -> float:
    """Of one round."""
    start = time.perf_counter()
    one.step()  # ends with values on the CPU, so nothing is still running
    return time.perf_counter() - start


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument(
        "--data", help="dataset of the cases of PriMORL, which are left out without it"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args()
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    torch.set_num_threads(args.threads)
    for name in args.cases or CASES:
        words = CASES[name]
        if "{data}" in words and args.data is None:
            continue
        devices = ("cpu", args.device)
        runs = [trainer(words.format(data=args.data), device) for device in devices]
        times = [[seconds(one) for one in runs] for _ in range(args.rounds)]
        cpu, gpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{name}: cpu {cpu:.3f} s, {args.device} {gpu:.3f} s, cpu / {args.device} {cpu / gpu:.2f}",
            flush=True,
        )
        for one in runs:
            one.close()


if __name__ == "__main__":
    main()
