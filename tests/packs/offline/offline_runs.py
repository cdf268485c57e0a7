"""Small offline runs on the session's dataset of random play on Pendulum."""

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

SMALL = (
    *("env=pendulum", "env.max_episode_steps=40", "data.public=0.1", "log=none", "rounds=6"),
    *("algo.hidden=[8]", "algo.model_hidden=[6]", "algo.batch=8", "algo.policy_steps=4"),
    *("algo.rollouts=8", "algo.rollout_length=3", "algo.rollout_every=2", "algo.check_every=2"),
    *("algo.improve_every=2", "algo.policy_turns=2", "privacy.users_per_round=10"),
    *("eval.episodes=1", "eval.every=0", "log.plot=false", "log.progress=false"),
)


def config_of(algo, data_id, *words, seed=0):
    return compose(
        later_wins([f"algo={algo}", f"data.id={data_id}", *SMALL, *words, f"seed={seed}"])
    )


def session(algo, data_id, *words, seeds=(0,)):
    configs = [config_of(algo, data_id, *words, seed=s) for s in seeds]
    return Trainer(make_plan(configs))


def played(algo, data_id, *words, seeds=(0,)):
    """The final tensors."""
    one = session(algo, data_id, *words, seeds=seeds)
    while not one.over:
        one.step()
    one.close()
    return one.state.tensors


def assert_same(a, b):
    """Bit for bit, NaN equal to NaN."""
    assert a.keys() == b.keys()
    for name, x in a.items():
        torch.testing.assert_close(b[name], x, rtol=0, atol=0, equal_nan=True, msg=name)
