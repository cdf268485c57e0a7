"""SAC against plain torch; the memory it learns from; learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import BOX, CHOICE, own, vector_of
from off_policy_reference import (
    CRITIC,
    HIDDEN,
    SETUP,
    SIZE,
    STREAMS,
    Part,
    a_batch,
    assert_cut_in_two_is_whole,
    assert_neighbours_do_not_matter,
    assert_two_seeds_are_two_alone,
    draws,
    follow,
    one_step_bandit,
    remembering,
    session,
    started,
)
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from privrl_bench.algorithms.base import check_actions
from privrl_bench.algorithms.value.sac import Sac
from privrl_bench.algorithms.value.value_settings import DdpgConfig, SacConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError
from privrl_bench.models.bounded import SquashedPolicy

CONFIG = SacConfig(hidden=HIDDEN, lr=1e-2, tau=0.1, batch=SIZE, updates=0.125)


def squashed(outputs):
    mean, spread = outputs.chunk(2, -1)
    std = (-5 + 3.5 * (torch.tanh(spread) + 1)).exp()
    return TransformedDistribution(Normal(mean, std), [TanhTransform(cache_size=1)])


class Twin:
    """One replica: modules, distributions, optimisers."""

    def __init__(self, tensors, r):
        self.actor = Part(tensors["actor"][r], [BOX.obs_dim, *HIDDEN, 2 * BOX.actions], CONFIG.lr)
        self.critics = [Part(v, CRITIC, CONFIG.lr) for v in tensors["critic"][r].chunk(2)]
        self.targets = [Part(v, CRITIC, 0.0).net for v in tensors["target"][r].chunk(2)]
        self.log_alpha = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=CONFIG.lr)

    def act(self, obs, noise):
        found = squashed(self.actor(obs))
        free = found.base_dist.loc + found.base_dist.scale * noise
        action = found.transforms[0](free)
        return action, Independent(found, 1).log_prob(action)

    def step(self, batch, noise):
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = self.act(batch.next_obs, noise[0])
            x = torch.cat([batch.next_obs, action], -1)
            worst = torch.minimum(*(target(x)[:, 0] for target in self.targets))
            goal = batch.reward + batch.discount * (worst - alpha * log_prob)
        for critic in self.critics:
            value = critic(batch.obs, batch.action)[:, 0]
            critic.descend(0.5 * torch.nn.functional.mse_loss(value, goal))
        action, log_prob = self.act(batch.obs, noise[1])
        worth = torch.minimum(*(critic(batch.obs, action)[:, 0] for critic in self.critics))
        self.actor.descend((alpha * log_prob - worth).mean())
        self.alpha_optimizer.zero_grad()
        (-self.log_alpha * (log_prob.detach() - BOX.actions).mean()).sum().backward()
        self.alpha_optimizer.step()
        for target, critic in zip(self.targets, self.critics, strict=True):
            follow(target, critic.net, CONFIG.tau)


def test_steps_equal_plain_torch() -> None:
    learner = Sac(CONFIG, SETUP)._learner
    tensors = started(learner)
    twins = [Twin(tensors, r) for r in range(2)]
    for index in range(4):
        batch = a_batch(index)
        tensors = learner.step(tensors, batch, draws(index))
        for r, (twin, g) in enumerate(zip(twins, draws(index), strict=True)):
            noise = torch.randn(2, SIZE, BOX.actions, generator=g)
            twin.step(type(batch)(*(x[r] for x in batch)), noise)
            expected = {
                "actor": twin.actor.vector(),
                "critic": torch.cat([c.vector() for c in twin.critics]),
                "target": torch.cat([vector_of(t) for t in twin.targets]),
                "log_alpha": twin.log_alpha.detach(),
            }
            for name, x in expected.items():
                torch.testing.assert_close(tensors[name][r], x, rtol=1e-6, atol=1e-7, msg=name)


def test_log_densities_are_those_of_the_squashed_normal() -> None:
    policy = SquashedPolicy(BOX, tuple(HIDDEN))
    g = torch.Generator().manual_seed(0)
    params = torch.randn(2, policy.size, generator=g, dtype=torch.float64)
    obs = torch.randn(2, 50, 3, generator=g, dtype=torch.float64)
    noise = torch.randn(2, 50, 2, generator=g, dtype=torch.float64)
    action, log_prob = policy.sample(params, obs, noise)
    expected = squashed(policy.net.forward(params, obs))
    keep = (action.abs() < 1 - 1e-6).all(-1)  # beyond, atanh has no digits left
    assert keep.float().mean() > 0.5
    inside = torch.where(keep[..., None], action, 0.0)
    density = expected.log_prob(inside).sum(-1)
    torch.testing.assert_close(log_prob[keep], density[keep], rtol=1e-6, atol=1e-6)
    assert torch.isfinite(policy.sample(50 * params, obs, noise)[1]).all()
    assert torch.equal(policy.sampler(params)(obs, noise), action)
    assert torch.equal(policy.greedy(params, obs), policy.sampler(params)(obs, 0 * noise))


def test_the_policys_box_is_the_environments() -> None:
    policy = SquashedPolicy(BOX, tuple(HIDDEN))
    corners = np.array([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [-3.0, 0.5]])
    there = policy.to_env(corners)
    np.testing.assert_allclose(there, [[-1, -2], [1, 4], [0, 1], [-1, 2.5]])
    np.testing.assert_allclose(policy.from_env(there), np.clip(corners, -1, 1))


def test_a_replica_does_not_depend_on_its_neighbours() -> None:
    assert_neighbours_do_not_matter(Sac(CONFIG, SETUP)._learner)


class TestMemory:
    def test_steps_come_in_order(self) -> None:
        tensors, came = remembering(Sac, CONFIG, 3, 100)
        for r in range(2):
            assert tensors["seen"][r] == 24
            assert tensors["memory_reward"][r, :24].tolist() == pytest.approx(came[r])
            assert not tensors["memory_reward"][r, 24:].any()

    def test_the_oldest_are_overwritten(self) -> None:
        tensors, came = remembering(Sac, CONFIG, 5, 10)
        for r in range(2):
            assert sorted(tensors["memory_reward"][r].tolist()) == sorted(came[r][-10:])

    def test_a_round_may_be_larger_than_the_memory(self) -> None:
        for rounds in (1, 2, 3, 4):
            tensors, came = remembering(Sac, CONFIG, rounds, 7)
            for r in range(2):
                found = tensors["memory_reward"][r].tolist()
                assert sorted(found) == sorted(came[r][-7:])
                # The place that is written next holds the oldest.
                assert found[int(tensors["seen"][r]) % 7] == pytest.approx(came[r][-7])

    def test_absent_steps_and_invalid_users_are_left_out(self) -> None:
        tensors, came = remembering(Sac, CONFIG, 2, 50, lengths=[[1, 4], [3, 2]])
        for r in range(2):
            assert tensors["memory_reward"][r, :10].tolist() == pytest.approx(came[r])
        tensors, came = remembering(Sac, CONFIG, 2, 50, invalid=(0,))
        assert tensors["seen"].flatten().tolist() == [8, 8]
        assert tensors["memory_reward"][0, :8].tolist() == pytest.approx(came[0])

    def test_without_any_step_nothing_is_learned(self) -> None:
        tensors, _ = remembering(Sac, CONFIG, 2, 50, invalid=(0, 1))
        start = Sac(CONFIG, SETUP).init(STREAMS).tensors
        for name in ("actor", "critic"):
            assert torch.equal(tensors[name], start[name])


@pytest.mark.parametrize("config", [SacConfig, DdpgConfig])
def test_choices_and_boxes_without_bounds_are_refused(config) -> None:
    open_box = type(BOX)("open", 3, False, 1, 10, np.array([-np.inf]), np.array([1.0]))
    for spec in (CHOICE, open_box, env_spec(own("MyEnv"))):
        with pytest.raises(ConfigError, match=r"^env: algo=\w+ needs actions in a bounded box"):
            check_actions(config.traits.actions, spec, "sac")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("words", [(), ("privacy.users_per_round=3",), ("algo.memory=50",)])
def test_a_session_cut_in_two_is_whole(words) -> None:
    assert_cut_in_two_is_whole("sac", *words)


def test_two_seeds_together_are_two_seeds_alone() -> None:
    assert_two_seeds_are_two_alone(session("sac", seeds=(0, 1)), session("sac", seeds=(1,)))


def test_it_finds_the_best_action_of_one_step() -> None:
    algo = Sac(replace(CONFIG, hidden=[32, 32], lr=1e-2, target_entropy=-6.0), SETUP)
    found, best = one_step_bandit(algo._learner, algo.policy)
    torch.testing.assert_close(found, best.expand(2, -1), rtol=0, atol=0.1)


@pytest.mark.slow
def test_it_learns_pendulum() -> None:
    """Random play: about -1,200; upright from the start: about -150."""
    words = [
        "algo.hidden=[64,64]",
        "algo.lr=1e-3",
        "algo.batch=64",
        "env.user_steps=200",
        "algo.updates=1",
    ]
    one = session("sac", *words, "eval.episodes=10", "total_steps=8_000")
    while not one.over:
        one.step()
    assert one.evaluate()[0].returns.mean() > -300
    one.close()
