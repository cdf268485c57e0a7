"""Logs of a short walk on a line, paid at its right end, as a dataset without a simulator."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from gymnasium import spaces
from minari.serialization import serialize_space

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.packs.offline.datasets.minari_files import LOGS, datasets_root
from privrl_bench.packs.offline.datasets.trajectories import Trajectories, episode_of
from privrl_bench.packs.offline.datasets.user_keys import OURS
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

STEPS, SIDE = 12, 6
QUIET = ("log=none", "log.progress=false", "log.plot=false", "eval.every=0")


def walk(rng, right, continuous):
    """One episode: a place from 0 to 1 and a coordinate without meaning; `right`: chance of that action."""
    place, seen, acted, paid = int(rng.integers(0, 3)), [], [], []
    for _ in range(STEPS):
        seen.append([place / SIDE, rng.normal()])
        go = bool(rng.random() < right)
        acted.append([0.8 if go else -0.4] if continuous else int(go))
        place = min(place + 1, SIDE) if go else max(place - 1, 0)
        paid.append(float(place == SIDE))
        if place == SIDE:
            break
    seen.append([place / SIDE, rng.normal()])
    kind = np.float32 if continuous else np.int64
    arrays = np.array(seen, np.float32), np.array(acted, kind), np.array(paid, np.float32)
    chance = np.where(np.array(acted).reshape(len(acted), -1)[:, 0] > 0, right, 1 - right)
    return episode_of(*arrays, place == SIDE, chance.astype(np.float32))


@cache
def begun(right, continuous):
    """The episodes that were made, and what draws further ones."""
    return [], np.random.default_rng(0)


@cache
def walks(count, right, continuous):
    """The first `count` episodes, which are made once."""
    made, rng = begun(right, continuous)
    made += (walk(rng, right, continuous) for _ in range(count - len(made)))
    return Trajectories.of(made[:count])


def walk_logs(name, users=300, right=0.5, continuous=False, episodes=1, known=True):
    """Write the dataset, `known` with the actions' probabilities; returns its name."""
    made = walks(users * episodes, right, continuous)
    acts = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)
    seen = spaces.Box(np.float32([0, -5]), np.float32([1, 5]))
    parts = {"observation_space": serialize_space(seen), "action_space": serialize_space(acts)}
    logs = {"ranges": {}, "steps": STEPS, "givers": 0}
    copy = replace(
        made,
        card={"minari": {"users": "simulated", **parts}, "logs": logs},
        labels={OURS: [f"u{k // episodes}" for k in range(users * episodes)]},
        behavior_probs=made.behavior_probs if known else None,
    )
    copy.save((datasets_root() / name / LOGS).parent)
    return name


def config_of(algo, name, *words, seed=0):
    given = (f"algo={algo}", "env=logs", f"data.id={name}", "data.public=0.1")
    return compose(later_wins([*given, *QUIET, *words, f"seed={seed}"]))


def session(algo, name, *words, seeds=(0,)):
    return Trainer(make_plan([config_of(algo, name, *words, seed=s) for s in seeds]))


def trained(algo, name, *words, seeds=(0,)):
    """The trainer after its last round."""
    one = session(algo, name, *words, seeds=seeds)
    while not one.over:
        one.step()
    one.close()
    return one


def check_neighbours(algo, *words, rtol=1e-5, atol=1e-6):
    """A replica does not depend on its neighbours."""
    name = walk_logs("walks/b-v0")
    both = trained(algo, name, *words, seeds=(3, 4)).state.tensors["actor"]
    alone = trained(algo, name, *words, seeds=(4,)).state.tensors["actor"]
    torch.testing.assert_close(both[1:], alone, rtol=rtol, atol=atol)
