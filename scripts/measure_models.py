"""How well the models of a finished run of PriMORL or MOPO predict, and what its policy does in them.

    python scripts/measure_models.py RUN [--steps 1000] [--rollouts 40]

The dataset of the run must be there. Prints, in standard deviations of the public part:

    - for each target (changes of the observation, then the reward): root mean square error of the members
    - for each tenth of the public steps, by reward: its mean, mean prediction and mean predicted deviation

and then returns, unscaled: of the greedy policy in the models from first states of the environment, without a
penalty; the sum of its penalties; and in the environment, from summary.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import make_slots
from privrl_bench.functional.averaging import AVERAGE
from privrl_bench.packs.offline.model_based.ensemble import UNCERTAINTY
from privrl_bench.packs.offline.model_based.offline_training import ModelBased
from privrl_bench.run.plan import Plan, make_plan
from privrl_bench.run.workers import make_collector

_MOST = 30_000  # public steps that are predicted


def of_public_steps(algo: ModelBased, models: Tensor) -> None:
    """Print errors by target, and the reward by tenths."""
    public, units = algo.public_steps, algo.ensemble.units
    step = max(len(public.obs) // _MOST, 1)
    x = torch.cat([public.obs, public.action], -1)[::step]
    y = algo.ensemble.target(public.obs, public.next_obs, public.reward)[::step]
    mean, log_var = (one[0] for one in algo.ensemble.predict(models, x.unsqueeze(0)))
    errors = (mean - y).square().mean((0, 1)).sqrt()
    print("errors  ", " ".join(f"{float(one):.3f}" for one in errors))
    reward, found, deviation = y[:, -1], mean.mean(0)[:, -1], (0.5 * log_var[..., -1]).exp().mean(0)
    print(
        f"reward   standard deviation {float(units.std[-1]):.3g}, mean {float(units.mean[-1]):.3g}"
    )
    for tenth in reward.argsort().tensor_split(10):
        shown = (float(one[tenth].mean()) for one in (reward, found, deviation))
        print("         {:6.2f} predicted {:6.2f} deviation {:5.2f}".format(*shown))


def first_states(parts: Plan, count: int) -> Tensor:
    """[1, B, D] scaled observations after a reset."""
    collector = make_collector(parts)
    collector.scaler.use(parts.algo.scaling(parts.algo.init(parts.streams)))
    slots = make_slots(parts.config.env, count)
    obs = slots.reset(np.arange(count), list(range(count)))
    slots.close()
    return torch.from_numpy(collector.scaler.frozen().obs(obs[None])).float()


def in_models(algo: ModelBased, models: Tensor, actor: Tensor, obs: Tensor, steps: int) -> Tensor:
    """Means of (return, sum of penalties) of the greedy policy, in the units of learning."""
    units, unsure = algo.ensemble.units, UNCERTAINTY[algo.config.uncertainty]
    total, weight = torch.zeros(2), algo.config.penalty * units.std[-1]
    for _ in range(steps):
        action = algo.policy.greedy(actor, obs)
        mean, log_var = algo.ensemble.predict(models, torch.cat([obs, action], -1))
        change = mean.mean(1) * units.std + units.mean
        obs = (obs + change[..., :-1]).clamp(-10.0, 10.0)
        penalty = weight * unsure(mean, log_var)
        total += torch.stack([change[..., -1].mean(), penalty.mean()])
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=1000, help="of a rollout in the models")
    parser.add_argument("--rollouts", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts = make_plan([compose((given.run / "overrides.txt").read_text().split())])
    algo, state = parts.algo, torch.load(given.run / "checkpoint.pt", weights_only=True)["state"]
    assert isinstance(algo, ModelBased)
    with torch.inference_mode():
        of_public_steps(algo, state["best"])
        begin, actor = first_states(parts, given.rollouts), state.get(AVERAGE, state["actor"])
        sums = in_models(algo, state["best"], actor, begin, given.steps)
    returned, penalty = (float(x) / parts.config.env.reward_scale for x in sums)
    real = json.loads((given.run / "summary.json").read_text())["return"]["mean"]
    print(
        f"return   in the models {returned:.0f}, penalties {penalty:.0f}, in the environment {real:.0f}"
    )


if __name__ == "__main__":
    main()
