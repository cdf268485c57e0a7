"""DDPG against plain torch; learning. The memory is that of SAC, in test_sac.py."""

from dataclasses import replace

import pytest
import torch
from helpers import BOX, vector_of
from off_policy_reference import (
    CRITIC,
    HIDDEN,
    SETUP,
    SIZE,
    Part,
    a_batch,
    assert_cut_in_two_is_whole,
    assert_neighbours_do_not_matter,
    assert_two_seeds_are_two_alone,
    draws,
    follow,
    one_step_bandit,
    session,
    started,
)

from privrl_bench.algorithms.value.ddpg import Ddpg
from privrl_bench.algorithms.value.value_settings import DdpgConfig
from privrl_bench.errors import ConfigError
from privrl_bench.models.bounded import DeterministicPolicy

CONFIG = DdpgConfig(hidden=HIDDEN, lr=1e-2, tau=0.1, batch=SIZE, updates=0.125, decay=0.05)


class Twin:
    """One replica: modules and optimisers; the penalty is Adam's own."""

    def __init__(self, tensors, r):
        self.actor = Part(tensors["actor"][r], [BOX.obs_dim, *HIDDEN, BOX.actions], CONFIG.lr)
        self.critic = Part(tensors["critic"][r], CRITIC, CONFIG.lr)
        self.critic.optimizer.param_groups[0]["weight_decay"] = CONFIG.decay
        self.target_actor = Part(
            tensors["target_actor"][r], [BOX.obs_dim, *HIDDEN, BOX.actions], 0.0
        ).net
        self.target_critic = Part(tensors["target_critic"][r], CRITIC, 0.0).net

    def step(self, batch):
        with torch.no_grad():
            action = torch.tanh(self.target_actor(batch.next_obs))
            after = self.target_critic(torch.cat([batch.next_obs, action], -1))[:, 0]
            goal = batch.reward + batch.discount * after
        value = self.critic(batch.obs, batch.action)[:, 0]
        self.critic.descend(torch.nn.functional.mse_loss(value, goal))
        action = torch.tanh(self.actor(batch.obs))
        self.actor.descend(-self.critic(batch.obs, action).mean())
        follow(self.target_actor, self.actor.net, CONFIG.tau)
        follow(self.target_critic, self.critic.net, CONFIG.tau)


def test_steps_equal_plain_torch() -> None:
    learner = Ddpg(CONFIG, SETUP)._learner
    tensors = started(learner)
    twins = [Twin(tensors, r) for r in range(2)]
    for index in range(4):
        batch = a_batch(index)
        tensors = learner.step(tensors, batch, draws(index))
        for r, twin in enumerate(twins):
            twin.step(type(batch)(*(x[r] for x in batch)))
            expected = {
                "actor": twin.actor.vector(),
                "critic": twin.critic.vector(),
                "target_actor": vector_of(twin.target_actor),
                "target_critic": vector_of(twin.target_critic),
            }
            for name, x in expected.items():
                torch.testing.assert_close(tensors[name][r], x, rtol=1e-7, atol=1e-9, msg=name)


def test_exploration_is_noise_on_the_greedy_action() -> None:
    policy = DeterministicPolicy(BOX, tuple(HIDDEN), 0.3)
    g = torch.Generator().manual_seed(0)
    params, obs = torch.randn(1, policy.size, generator=g), torch.randn(1, 4000, 3, generator=g)
    noise, greedy = policy.draw(g, 1, 4000), policy.greedy(params, obs)
    played = policy.sampler(params)(obs, noise)
    assert played.abs().max() <= 1
    free = played.abs() < 1
    torch.testing.assert_close(played[free], (greedy + 0.3 * noise)[free])
    assert torch.equal(policy.sampler(params)(obs, 0 * noise), greedy)


def test_a_replica_does_not_depend_on_its_neighbours() -> None:
    assert_neighbours_do_not_matter(Ddpg(CONFIG, SETUP)._learner)


def test_a_session_cut_in_two_is_whole() -> None:
    assert_cut_in_two_is_whole("ddpg", "algo.memory=60")


def test_two_seeds_together_are_two_seeds_alone() -> None:
    assert_two_seeds_are_two_alone(session("ddpg", seeds=(0, 1)), session("ddpg", seeds=(1,)))


def test_it_finds_the_best_action_of_one_step() -> None:
    algo = Ddpg(replace(CONFIG, hidden=[32, 32], lr=1e-2, decay=0.0), SETUP)
    found, best = one_step_bandit(algo._learner, algo.policy)
    torch.testing.assert_close(found, best.expand(2, -1), rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("memory", 4), ("tau", 0.0), ("updates", 0.0), ("hidden", []), ("exploration", -1.0)],
)
def test_settings_out_of_range_name_their_key(key, value) -> None:
    with pytest.raises(ConfigError, match=rf"^algo\.{key}: must be "):
        replace(CONFIG, **{key: value})


def test_it_is_not_private() -> None:
    one = session("ddpg")
    assert one.parts.gate.guarantee(0).status == "none"
    one.close()
