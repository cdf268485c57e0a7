"""Learn the files in privrl_bench/packs/offline/policies/: Q-learning on linear Fourier features.

    python scripts/make_policies.py mountain_car
    python scripts/make_policies.py hiv --out my_hiv.json

No real data: simulated episodes with epsilon-greedy actions. Two ways to learn from them:

- online (mountain car): every step is an update
  w_a <- w_a + alpha / ||c|| (r + gamma max_b w_b . phi' - w_a . phi) phi, without bootstrap after a terminal
  state (a time limit is none);
- fitted (HIV, where the online way stayed below constant treatments in what was tried): after every `look`
  episodes, played side by side (the first of them at random), `sweeps` times ridge regression of
  r + gamma max_b w_b . phi' on phi, for each action, over all steps so far.

Every `look` episodes the greedy policy is played; the one with the largest return is kept, and the file says
how it was made and what it scores.

Source: Watkins 1989; Ernst, Geurts and Wehenkel 2005 for the fitted way, with trees; Konidaris, Osentoski and
Thomas 2011 for the features and their steps.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.fixed_policies import (
    POLICIES,
    LinearValues,
    fixed_policy,
    fourier_features,
    fourier_waves,
    greedy,
)


@dataclass(frozen=True)
class Recipe:
    """How a policy is learned: `words` for its environment, features, and the settings of Q-learning."""

    way: str  # online | fitted
    words: tuple[str, ...]
    order: int
    joint: int | None
    gamma: float
    epsilon: float
    episodes: int
    look: int  # episodes between two looks at the greedy policy
    tests: int  # episodes of a look
    alpha: float = 0.0  # online
    sweeps: int = 0  # fitted
    ridge: float = 0.0  # fitted


RECIPES = {
    "mountain_car": Recipe(
        "online",
        ("env=mountain_car", "env.max_episode_steps=1000"),
        order=5,
        joint=None,
        gamma=0.99,
        epsilon=0.05,
        episodes=300,
        look=25,
        tests=200,
        alpha=0.005,
    ),
    "hiv": Recipe(
        "fitted",
        ("env=hiv",),
        order=1,
        joint=None,
        gamma=0.98,
        epsilon=0.15,
        episodes=300,
        look=30,
        tests=1,
        sweeps=100,
        ridge=0.01,
    ),
}


def fourier_steps(waves: torch.Tensor) -> torch.Tensor:
    """Return step size factors [F]: 1 / ||c||, and 1 for c = 0."""
    norm = waves.norm(dim=-1)
    return torch.where(norm > 0, 1.0 / norm.clamp(min=1.0), 1.0)


class Basis:
    """Features of raw observations on the public box of an environment."""

    def __init__(self, config: EnvConfig, order: int, joint: int | None):
        assert config.obs_low is not None
        assert config.obs_high is not None
        self.waves = fourier_waves(len(config.obs_low), order, joint)
        self._low = torch.tensor(config.obs_low, dtype=torch.float64)
        self._high = torch.tensor(config.obs_high, dtype=torch.float64)
        self.steps = fourier_steps(self.waves).numpy()

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """[..., D] -> [..., F]."""
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


def fit(
    phi: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    after: np.ndarray,
    weights: np.ndarray,
    recipe: Recipe,
) -> np.ndarray:
    """[A, F] weights after `sweeps` regressions on steps phi, after [n, F] that end no episode."""
    solvers = []
    for action in range(len(weights)):
        rows = phi[actions == action]
        gram = rows.T @ rows + recipe.ridge * np.eye(rows.shape[1])
        solvers.append((actions == action, np.linalg.solve(gram, rows.T)))
    for _ in range(recipe.sweeps):
        target = rewards + recipe.gamma * (after @ weights.T).max(-1)
        weights = np.stack([solver @ target[mine] for mine, solver in solvers])
    return weights


def online(recipe: Recipe, config: EnvConfig, basis: Basis, seed: int) -> Iterator[np.ndarray]:
    """[A, F] weights after every `look` episodes, one after the other."""
    slots, streams, one = make_slots(config, 1), Streams(seed), np.zeros(1, dtype=np.int64)
    weights = np.zeros((env_spec(config).actions, len(basis.waves)))
    steps = recipe.alpha * basis.steps
    for episode in range(recipe.episodes):
        rng = np.random.default_rng(streams.episode_seed("policy", episode))
        phi, over = basis(slots.reset(one, [streams.episode_seed("env", episode)])[0]), False
        while not over:
            loose = rng.random() < recipe.epsilon
            action = int(rng.integers(len(weights)) if loose else (weights @ phi).argmax())
            found = slots.step(one, np.array([action]))
            after = basis(found.obs[0])
            reward = float(learned_reward(config, found.rewards)[0])
            end = None if found.terminated[0] else after
            q_update(weights, phi, action, reward, end, recipe.gamma, steps)
            phi, over = after, bool(found.terminated[0] or found.truncated[0])
        if (episode + 1) % recipe.look == 0:
            yield weights


def fitted(recipe: Recipe, config: EnvConfig, basis: Basis, seed: int) -> Iterator[np.ndarray]:
    """[A, F] weights after every `look` episodes of an environment that ends by its time limit only."""
    spec, slots, streams = env_spec(config), make_slots(config, recipe.look), Streams(seed)
    weights = np.zeros((spec.actions, len(basis.waves)))
    kept: list[tuple[np.ndarray, ...]] = []
    everyone = np.arange(recipe.look)
    for turn in range(recipe.episodes // recipe.look):
        rng = np.random.default_rng(streams.episode_seed("policy", turn))
        phi = basis(
            slots.reset(
                everyone, [streams.episode_seed("env", turn, e) for e in range(recipe.look)]
            )
        )
        for _ in range(spec.max_episode_steps):
            loose = rng.random(recipe.look) < (recipe.epsilon if turn else 1.0)
            anything = rng.integers(spec.actions, size=recipe.look)
            actions = np.where(loose, anything, (phi @ weights.T).argmax(-1))
            found = slots.step(everyone, actions)
            after = basis(found.obs)
            kept.append((phi, actions, learned_reward(config, found.rewards), after))
            phi = after
        phis, actions, rewards, afters = (np.concatenate(part) for part in zip(*kept, strict=True))
        weights = fit(phis, actions, rewards, afters, weights, recipe)
        yield weights


def learned_reward(config: EnvConfig, rewards: np.ndarray) -> np.ndarray:
    """Scaled and cut as the environment's configuration says."""
    return np.clip(rewards * config.reward_scale, -config.reward_clip, config.reward_clip)


def learn(recipe: Recipe, seed: int) -> tuple[LinearValues, dict[str, Any]]:
    """The best greedy policy that training passed, and when. Says how it goes."""
    config = compose(recipe.words).env
    basis = Basis(config, recipe.order, recipe.joint)
    found: LinearValues | None = None
    best, when = -math.inf, 0
    way = {"online": online, "fitted": fitted}[recipe.way]
    for turn, weights in enumerate(way(recipe, config, basis, seed), start=1):
        values = as_values(config, recipe, weights)
        scores = play(config, values, recipe.tests, recipe.gamma, seed)
        shown = {name: float(f"{x:.6g}") for name, x in scores.items()}
        print(f"{turn * recipe.look} episodes: {shown}", flush=True)
        if scores["return"] > best:
            best, found, when = scores["return"], values, turn * recipe.look
    assert found is not None
    return found, {"training_episodes": when}


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
        chosen = greedy(values(torch.from_numpy(obs[going]).double()))
        found = slots.step(going, chosen.argmax(-1).numpy())
        total[going] += found.rewards
        discounted[going] += gamma ** length[going] * found.rewards
        length[going] += 1
        obs[going] = found.obs
        going = going[~(found.terminated | found.truncated)]
    slots.close()
    means = {"return": total, "discounted": discounted, "length": length}
    return {name: float(x.mean()) for name, x in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: the package's file")
    given = parser.parse_args()
    name, seed, recipe = given.name, given.seed, RECIPES[given.name]
    path = given.out or POLICIES / f"{name}.json"
    torch.set_num_threads(1)
    values, about = learn(recipe, seed)
    config = compose(recipe.words).env
    episodes = 1 if name == "hiv" else 200
    about |= {
        "command": f"python scripts/make_policies.py {name} --seed {seed}",
        "recipe": asdict(recipe),
        "greedy": play(config, values, episodes, recipe.gamma, seed + 1) | {"episodes": episodes},
    }
    replace(values, about=about).save(path)
    fixed_policy(name if path.parent == POLICIES else str(path), config, env_spec(config))
    print(f"{path}\n{json.dumps(about['greedy'])}")


if __name__ == "__main__":
    main()
