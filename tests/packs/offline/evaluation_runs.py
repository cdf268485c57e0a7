"""Short runs of policy evaluation, on small chains."""

from dataclasses import replace

import numpy as np
import torch
from helpers import members_of

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

CHAIN = ("env=chain", "env.kwargs.n=5", "data.policy=uniform", "privacy.population=40")
SWIM = ("env=riverswim", "data.policy=uniform", "privacy.population=40")


def config_of(*words, seed=0):
    given = {w.split("=")[0] for w in words}
    if "env" in given:  # of another environment
        given.add("env.kwargs.n")
    base = [w for w in CHAIN if w.split("=")[0] not in given]
    quiet = ("log=none", "log.progress=false", "log.plot=false", "eval.every=0")
    return compose(later_wins(words[:1], base, quiet, words[1:], [f"seed={seed}"]))


def parts_of(*words, seeds=(0,)):
    return make_plan([config_of(*words, seed=s) for s in seeds])


def theta_of(*words, seeds=(0,)):
    one = Trainer(parts_of(*words, seeds=seeds))
    while not one.over:
        one.step()
    one.close()
    return one.parts.algo.actor(one.state)


def full_batch(parts):
    """All users of a session in one batch."""
    collector = Trainer(parts).collector
    everyone = [np.arange(40)] * len(parts.configs)
    collector.shape = replace(collector.shape, users=40)
    return collector.collect(None, 0, members_of(*everyone))


def check_pieces(algo, monkeypatch):
    """What is computed does not depend on how users are split over shards."""
    whole = theta_of(f"algo={algo}", "env.max_episode_steps=30")
    monkeypatch.setattr("privrl_bench.training.workers.shard_size", lambda spec, steps: 7)
    torch.testing.assert_close(theta_of(f"algo={algo}", "env.max_episode_steps=30"), whole)


def check_neighbours(algo, *words):
    """A replica does not depend on its neighbours."""
    words = (f"algo={algo}", *words)
    both, second = theta_of(*words, seeds=(3, 4)), theta_of(*words, seeds=(4,))
    torch.testing.assert_close(both[1:], second, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(both[0], both[1])
