"""Tests of the plugin: the environment is a valid one, and a row is the gradient that the text says."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils.env_checker import check_env

from privrl_bench.algorithms.base import AlgorithmContext, PrivacyFacts
from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import env_spec
from privrl_bench.functional.rng import Streams
from privrl_bench.types import UserBatch
from privrl_example.critic_reinforce import ALGORITHM

WORDS = ("plugins=[privrl_example]", "algo=critic_reinforce", "env=thermostat")


def test_gymnasium_accepts_the_environment():
    env = gym.make("privrl_example.thermostat:Thermostat-v0")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    steps = [env.step(2) for _ in range(48)]
    assert [truncated for *_, truncated, _ in steps].index(True) == 47
    assert all(reward < 0.0 for _, reward, *_ in steps)


def test_the_yaml_files_compose():
    config = compose(WORDS)
    assert (config.algo.name, config.env.name) == ("critic_reinforce", "thermostat")
    assert config.env.user_steps == 48


def test_a_row_is_the_gradient():
    """By autograd, for a user with two episodes of two steps and one of a single step."""
    config = compose(WORDS)
    context = AlgorithmContext(spec=env_spec(config.env), privacy=PrivacyFacts(clip=1.0, users=2))
    algo, streams = ALGORITHM(config.algo, context), [Streams(0)]
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(1, 2, 5, 2, generator=generator)
    done = torch.tensor([False, True, False, True, True]).expand(1, 2, 5)
    users = UserBatch(
        obs=obs,
        next_obs=obs,
        actions=torch.randint(3, (1, 2, 5), generator=generator),
        rewards=torch.randn(1, 2, 5, generator=generator),
        terminated=torch.zeros(1, 2, 5, dtype=torch.bool),
        done=done,
        mask=torch.ones(1, 2, 5, dtype=torch.bool),
        valid=torch.ones(1, 2, dtype=torch.bool),
    )
    state = algo.init(streams)
    state.tensors["critic"] = torch.tensor([[0.3, -0.2, 0.5]])
    rows, _, _ = algo.user_update(state, users, streams).take()

    user, gamma = 1, config.algo.gamma
    rewards, to_go = users.rewards[0, user], torch.zeros(5)
    for t in reversed(range(5)):
        to_go[t] = rewards[t] + (0.0 if done[0, user, t] else gamma * to_go[t + 1])
    theta = state.tensors["actor"].clone().requires_grad_()
    weights = state.tensors["critic"].clone().requires_grad_()
    seen = obs[0, user] / obs[0, user].norm(dim=-1, keepdim=True).clamp_min(1.0)
    values = weights[0, 0] + seen @ weights[0, 1:]
    logits = algo.policy.logits(theta, seen[None])[0]
    chosen = logits.gather(-1, users.actions[0, user, :, None]).squeeze(-1)
    objective = ((to_go - values.detach()) * chosen).mean() - 0.5 * ((to_go - values) ** 2).mean()
    objective.backward()
    np.testing.assert_allclose(rows["actor"][0, user], theta.grad[0], atol=1e-6)
    np.testing.assert_allclose(rows["critic"][0, user], weights.grad[0], atol=1e-6)
