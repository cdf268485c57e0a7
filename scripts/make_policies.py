"""Learn the package's policy files (privrl_bench/nets/policies/) by Q-learning on linear Fourier features.

    python scripts/make_policies.py mountain_car
    python scripts/make_policies.py hiv --out my_hiv.json

Nobody's data: simulated episodes, one after the other, each step an update

    w_a <- w_a + alpha / ||c|| (r + gamma max_b w_b . phi' - w_a . phi) phi,

with epsilon-greedy actions and no bootstrap after a terminal state (a time limit is none). Every `--look`
episodes the greedy policy is played; the best is kept, and the file says how it was made and what it scores.

Source: Watkins 1989; Konidaris, Osentoski and Thomas 2011 for the features and their steps.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.config import compose
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.nets.features import fourier_features, fourier_steps, fourier_waves
from privrl_bench.nets.known import POLICIES, LinearValues, greedy, known_policy
from privrl_bench.schema import EnvConfig
from privrl_bench.streams import Streams


@dataclass(frozen=True)
class Recipe:
    """How a policy is learned: `words` for its environment, features, and the settings of Q-learning."""

    words: tuple[str, ...]
    order: int
    joint: int | None
    gamma: float
    alpha: float
    epsilon: float
    episodes: int
    look: int  # episodes between two looks at the greedy policy
    tests: int  # episodes of a look


RECIPES = {
    "mountain_car": Recipe(
        ("env=mountain_car", "env.max_episode_steps=1000"), 5, None, 0.99, 0.005, 0.05, 300, 25, 50
    ),
    "hiv": Recipe(("env=hiv",), 3, 2, 0.98, 0.01, 0.1, 1500, 25, 1),
}


class Basis:
    """Features of raw observations on the public box of an environment, for one observation at a time."""

    def __init__(self, config: EnvConfig, order: int, joint: int | None):
        assert config.obs_low is not None
        assert config.obs_high is not None
        self.waves = fourier_waves(len(config.obs_low), order, joint)
        self._low = torch.tensor(config.obs_low, dtype=torch.float64)
        self._high = torch.tensor(config.obs_high, dtype=torch.float64)
        self.steps = fourier_steps(self.waves).numpy()

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """[D] -> [F]."""
        raw = torch.from_numpy(np.asarray(obs, dtype=np.float64))
        return fourier_features(raw, self._low, self._high, self.waves).numpy()


def q_update(
    weights: np.ndarray,
    phi: np.ndarray,
    action: int,
    reward: float,
    after: np.ndarray | None,
    gamma: float,
    steps: np.ndarray,
) -> None:
    """One step of Q-learning on `weights` [A, F], in place; `after`: next features, None after the end."""
    target = reward + (0.0 if after is None else gamma * float((weights @ after).max()))
    weights[action] += steps * (target - float(weights[action] @ phi)) * phi


def learn(recipe: Recipe, seed: int) -> tuple[LinearValues, dict[str, Any]]:
    """The best greedy policy that training passed, and its scores. Says how it goes."""
    config = compose(recipe.words).env
    spec, slots, streams = env_spec(config), make_slots(config, 1), Streams(seed)
    basis = Basis(config, recipe.order, recipe.joint)
    weights = np.zeros((spec.actions, len(basis.waves)))
    steps, one = recipe.alpha * basis.steps, np.zeros(1, dtype=np.int64)
    best: tuple[float, LinearValues | None, dict[str, Any]] = (-math.inf, None, {})
    for episode in range(recipe.episodes):
        rng = np.random.default_rng(streams.episode_seed("policy", episode))
        phi, over = basis(slots.reset(one, [streams.episode_seed("env", episode)])[0]), False
        while not over:
            loose = rng.random() < recipe.epsilon
            action = rng.integers(spec.actions) if loose else (weights @ phi).argmax()
            found = slots.step(one, np.array([action]))
            after = basis(found.obs[0])
            reward = min(float(found.rewards[0]) * config.reward_scale, config.reward_clip)
            end = None if found.terminated[0] else after
            q_update(weights, phi, int(action), reward, end, recipe.gamma, steps)
            phi, over = after, bool(found.terminated[0] or found.truncated[0])
        if (episode + 1) % recipe.look == 0:
            values = as_values(config, recipe, weights)
            scores = play(config, values, recipe.tests, recipe.gamma, seed)
            shown = {name: round(x, 6) for name, x in scores.items()}
            print(f"{episode + 1} episodes: {shown}", flush=True)
            if scores["discounted"] > best[0]:
                best = (scores["discounted"], values, {"training_episodes": episode + 1})
    slots.close()
    assert best[1] is not None, "the recipe looks never"
    return best[1], best[2]


def as_values(config: EnvConfig, recipe: Recipe, weights: np.ndarray) -> LinearValues:
    """The current policy; its values are in the environment's own units of reward."""
    assert config.obs_low is not None
    assert config.obs_high is not None
    return LinearValues(
        str(config.id),
        recipe.order,
        recipe.joint,
        list(config.obs_low),
        list(config.obs_high),
        torch.tensor(weights.T / config.reward_scale, dtype=torch.float64),
        {},
    )


def play(
    config: EnvConfig, values: LinearValues, episodes: int, gamma: float, seed: int
) -> dict[str, float]:
    """Mean raw return, discounted return and length of greedy episodes that training did not see."""
    slots, streams = make_slots(config, episodes), Streams(seed)
    seeds = [streams.episode_seed("eval_env", 0, e) for e in range(episodes)]
    obs = slots.reset(np.arange(episodes), seeds).astype(np.float32)
    going = np.arange(episodes)
    total, discounted, length = np.zeros(episodes), np.zeros(episodes), np.zeros(episodes)
    while len(going):
        chances = greedy(values(torch.from_numpy(obs[going]).double()))
        found = slots.step(going, chances.argmax(-1).numpy())
        total[going] += found.rewards
        discounted[going] += gamma ** length[going] * found.rewards
        length[going] += 1
        obs[going] = found.obs
        going = going[~(found.terminated | found.truncated)]
    slots.close()
    means = {"return": total, "discounted": discounted, "length": length}
    return {name: float(x.mean()) for name, x in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: the package's file")
    for key in ("alpha", "epsilon"):
        parser.add_argument(f"--{key}", type=float)
    for key in ("episodes", "order", "joint", "look", "tests"):
        parser.add_argument(f"--{key}", type=int)
    given = vars(parser.parse_args())
    name, seed = given.pop("name"), given.pop("seed")
    path = given.pop("out") or POLICIES / f"{name}.json"
    changes = {key: value for key, value in given.items() if value is not None}
    recipe = replace(RECIPES[name], **changes)
    torch.set_num_threads(1)
    values, about = learn(recipe, seed)
    config = compose(recipe.words).env
    episodes = 1 if name == "hiv" else 200
    about |= {
        "command": " ".join(
            ["python scripts/make_policies.py", name, f"--seed {seed}"]
            + [f"--{key} {value}" for key, value in changes.items()]
        ),
        "recipe": asdict(recipe),
        "greedy": play(config, values, episodes, recipe.gamma, seed + 1) | {"episodes": episodes},
    }
    replace(values, about=about).save(path)
    known_policy(name if path.parent == POLICIES else str(path), config, env_spec(config))
    print(f"{path}\n{json.dumps(about['greedy'])}")


if __name__ == "__main__":
    main()
