"""Benchmark compiled episodes against episodes stepped with tensors: CartPole, one user per round.

    python scripts/bench_episodes.py [--replicas 20] [--rounds 5] [--repeats 5]

A round is that of +paper=reinforce: one training episode with dropout and one greedy episode. The parameters
are the initial ones, multiplied by --gain. Both are timed in turn in one process, in CPU time. Compare the
ratio of the medians.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from unittest import mock

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation import returns as evaluate
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.users.collectors import live as rollout
from privrl_bench.users.collectors.live import SimulatedCollector


def main() -> None:
    """Print the milliseconds of a round of one replica for both, and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gain", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = compose(["algo=reinforce", "env=cartpole", "+paper=reinforce"]).env
    spec = env_spec(config)
    policy = DropoutPolicy(spec, (128,), 0.5)
    streams = [Streams(seed) for seed in range(options.replicas)]
    actor = options.gain * torch.stack([policy.init(s.torch("init", 0)) for s in streams])
    users = SimulatedCollector(config, spec, policy, streams, 1, spec.max_episode_steps, 0.99)
    evaluator = ReturnEvaluator(config, spec, policy, streams, 1, True)
    everyone = Cohort([1] * options.replicas, None)
    played: list[int] = []

    def rounds() -> float:
        begin = time.process_time()
        for index in range(options.rounds):
            batch = users.collect(actor, index, everyone)
            found = evaluator.evaluate(actor, index, FrozenScaling(None, None, 0.0))
            played.append(int(batch.mask.sum()) + sum(int(one.lengths.sum()) for one in found))
        return (time.process_time() - begin) / options.rounds / options.replicas * 1e3

    rounds()  # compiles
    played.clear()
    compiled, stepped = [], []
    for _ in range(options.repeats):  # in turn, because machines are noisy
        compiled.append(rounds())
        with (
            mock.patch.object(rollout, "player", return_value=None),
            mock.patch.object(evaluate, "player", return_value=None),
        ):
            stepped.append(rounds())
    fast, slow = median(compiled), median(stepped)
    steps = sum(played) / len(played) / options.replicas
    print(
        f"{steps:.0f} steps in a round of one replica: compiled {fast:.2f} ms, stepped {slow:.2f} ms, "
        f"ratio {slow / fast:.1f}"
    )


if __name__ == "__main__":
    main()
