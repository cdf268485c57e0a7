"""Interquartile ranges of the states of evaluation episodes, one after every training episode.

    python scripts/evaluation_states.py [--runs 40] [--episodes 180]

Figure 4 and table 1 of Doulazmi and Odonnat have states "during the training" of REINFORCE without noise. The
authors' code plays one greedy episode without dropout after every training episode. This prints the ranges of
such episodes for every run, as median and central 95 % over runs: to compare with those of the training
episodes, `outputs/paper/dp-rl/fig4/`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.registry import make_slots
from privrl_bench.run.plan import make_plan
from privrl_bench.run.trainer import Trainer

NAMES = ("position", "speed", "angle", "rate")


def greedy_episodes(trainer: Trainer, config: RunConfig, first_seed: int) -> list[np.ndarray]:
    """The observations [T, D] of one greedy episode of every replica."""
    runs = len(trainer.parts.configs)
    slots, policy = make_slots(config.env, runs), trainer.parts.algo.policy
    params = trainer.parts.algo.actor(trainer.state)
    now = slots.reset(np.arange(runs), list(range(first_seed, first_seed + runs)))
    going, seen = np.ones(runs, dtype=bool), []
    with torch.inference_mode():
        while going.any():
            seen.append(np.where(going[:, None], now, np.nan))
            obs = torch.from_numpy(now.astype(np.float32)).unsqueeze(1)
            actions = policy.greedy(params, obs).numpy().reshape(runs)
            result = slots.step(np.flatnonzero(going), policy.to_env(actions[going]))
            now[going] = result.obs
            going[going] = ~(result.terminated | result.truncated)
    slots.close()
    stacked = np.stack(seen, axis=1)  # [runs, T, D]
    return [one[~np.isnan(one[:, 0])] for one in stacked]


def main() -> None:
    """Train, play after every round, print the ranges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--episodes", type=int, default=180, help="of training, of each run")
    options = parser.parse_args()
    words = ["algo=reinforce", "+paper=reinforce", "env=cartpole", "privacy=none"]
    words.append(f"rounds={options.episodes}")
    raw = [compose([*words, f"seed={i}"]) for i in range(options.runs)]
    torch.set_num_threads(1)
    trainer = Trainer(make_plan(raw))
    states: list[list[np.ndarray]] = [[] for _ in raw]
    while not trainer.over:
        trainer.step()
        for kept, one in zip(
            states, greedy_episodes(trainer, raw[0], 1000 * trainer.round), strict=True
        ):
            kept.append(one)
    trainer.close()
    quartiles = [np.quantile(np.concatenate(run), [0.25, 0.75], axis=0) for run in states]
    ranges = np.array([high - low for low, high in quartiles])
    for name, values in zip(NAMES, ranges.T, strict=True):
        low, middle, high = np.quantile(values, [0.025, 0.5, 0.975])
        print(f"{name:10}{middle:.3f} ({low:.3f} to {high:.3f} over {len(values)} runs)")


if __name__ == "__main__":
    main()
