"""Rounds on Ray: the same bits on two actors, and when one is killed."""

import logging
import os
import signal
import time

import pytest
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

ray = pytest.importorskip("ray")
WORDS = [
    *("algo=dppg", "env=acrobot", "log=none", "eval.every=0", "eval.episodes=1", "rounds=4"),
    *("algo.hidden=[4]", "algo.critic_features=6", "algo.epochs=2", "env.user_steps=12"),
    "privacy.users_per_round=40",
]


def session_of(*words):
    return Trainer(make_plan([compose([*WORDS, *words])]))


@pytest.fixture(scope="module")
def cluster():
    """Two cores, of which no more than these tests know."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_two_actors_release_what_one_process_does_and_a_killed_one_is_replaced(cluster):
    alone = session_of("hardware.workers=1")
    while not alone.over:
        alone.step()
    session = session_of("hardware=ray", "hardware.workers=2", "hardware.shard_users=10")
    session.step()
    first = session.pool._workers[0]
    assert len(session.pool._workers) == 2
    real = first.begin

    def begin(task):
        real(task)
        ray.kill(first.actor)

    first.begin = begin
    session.step()
    assert first not in session.pool._workers
    while session.pool._starting:
        time.sleep(0.1)
        session.pool._look_after()
    pid = ray.get(session.pool._workers[0].actor.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    while not session.over:
        session.step()
    session.close()
    for name, x in alone.state.tensors.items():
        assert torch.equal(x, session.state.tensors[name]), name
    assert ray.is_initialized()  # it was not started by the run
