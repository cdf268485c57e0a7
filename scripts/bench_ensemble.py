"""Benchmark local training of an ensemble against a loop over trajectories and members.

    python scripts/bench_ensemble.py [--threads 2] [--repeats 5]

One round of Swingup: 30 trajectories of 1000 steps, 5 members with two layers of 128, minibatches of 16,
gradient descent. The loop uses torch's modules for autograd and SGD; it is timed on a few trajectories and
scaled up. Compare the ratio of the two, which are timed in turn in one process.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from torch import Tensor

from privrl_bench.algorithms.model_based.local_ensemble import (
    LocalOptimizerConfig,
    clipped,
    clipping,
    train,
)
from privrl_bench.models.ensemble import Ensemble, Units
from privrl_bench.models.mlp import Mlp

TRAJECTORIES, STEPS, BATCH, BOUND = 30, 1000, 16, 1.0


def loop(
    ensemble: Ensemble, start: Tensor, data: tuple[Tensor, Tensor], config: LocalOptimizerConfig
) -> None:
    """Train each member on each trajectory in turn, with autograd."""
    clip = clipping(ensemble, "flat", BOUND)
    for user in range(len(data[0])):
        for begin in start[0].reshape(ensemble.members, -1):
            leaf = begin.clone().requires_grad_()
            optimizer = torch.optim.SGD([leaf], lr=config.lr, weight_decay=config.decay)
            for rows in config.order[0, user]:
                outputs = ensemble.net.forward(leaf[None], data[0][user, rows][None])
                loss = ensemble.loss(outputs, data[1][user, rows][None]).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    leaf.copy_(begin + clipped((leaf - begin)[None], clip)[0])


def main() -> None:
    """Print the seconds of both and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--few", type=int, default=1, help="trajectories that the loop is timed on")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    g = torch.Generator().manual_seed(0)
    ensemble = Ensemble(5, Mlp(6, (128, 128), 12, "swish"), Units(torch.zeros(6), torch.ones(6)))
    start = ensemble.init(g)[None]
    data = (
        torch.randn(TRAJECTORIES, STEPS, 6, generator=g),
        torch.randn(TRAJECTORIES, STEPS, 6, generator=g),
    )
    pieces = STEPS // BATCH
    order = torch.stack([torch.randperm(STEPS, generator=g) for _ in range(TRAJECTORIES)])
    order = order[:, : pieces * BATCH].reshape(1, TRAJECTORIES, pieces, BATCH)
    config = LocalOptimizerConfig(order, 3e-2, 2.5e-5, False)
    clip = clipping(ensemble, "flat", BOUND)
    whose = torch.zeros(TRAJECTORIES, dtype=torch.long)
    train(ensemble, start, whose, data, config, clip)  # compiles
    ours, theirs = [], []
    few = options.few
    for _ in range(options.repeats):  # in turn, because machines are noisy
        begin = time.perf_counter()
        train(ensemble, start, whose, data, config, clip)
        middle = time.perf_counter()
        loop(ensemble, start, (data[0][:few], data[1][:few]), config._replace(order=order[:, :few]))
        ours.append(middle - begin)
        theirs.append((time.perf_counter() - middle) * TRAJECTORIES / few)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print(f"compiled {median(ours):.2f} s, loop {median(theirs):.1f} s, ratio {median(ratios):.1f}")


if __name__ == "__main__":
    main()
