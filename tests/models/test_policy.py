"""Policies against torch.distributions, their samples against their probabilities."""

import numpy as np
import pytest
import torch
from helpers import BOX, CHOICE, TorchPolicy

from privrl_bench.errors import ConfigError
from privrl_bench.models.policy import CategoricalPolicy, GaussianPolicy, make_policy
from privrl_bench.types import EnvSpec, generator

HIDDEN = [6, 5]


def made(spec, count=3):
    policy = make_policy(spec, HIDDEN)
    g = torch.Generator().manual_seed(0)
    return policy, 0.7 * torch.randn(count, policy.size, generator=g), g


def test_the_action_space_decides_the_class() -> None:
    assert isinstance(make_policy(CHOICE, HIDDEN), CategoricalPolicy)
    assert isinstance(make_policy(BOX, HIDDEN), GaussianPolicy)


def test_the_initial_standard_deviation_of_actions_is_given() -> None:
    plain, small = make_policy(BOX, HIDDEN), make_policy(BOX, HIDDEN, log_std_init=-2.0)
    first, second = (policy.init(torch.Generator().manual_seed(0)) for policy in (plain, small))
    assert torch.equal(first[: -BOX.actions], second[: -BOX.actions])
    assert torch.equal(first[-BOX.actions :], torch.zeros(BOX.actions))
    noise = torch.randn(1, 5000, BOX.actions, generator=torch.Generator().manual_seed(1))
    obs = torch.zeros(1, 5000, BOX.obs_dim)
    actions = small.sampler(second.unsqueeze(0))(obs, noise)
    torch.testing.assert_close(
        actions.std(1)[0], torch.full((BOX.actions,), -2.0).exp(), rtol=0.05, atol=0.0
    )


def test_discrete_actions_have_no_standard_deviation() -> None:
    with pytest.raises(ConfigError, match=r"algo\.log_std_init: must be 0: .* are discrete"):
        make_policy(CHOICE, HIDDEN, log_std_init=-1.0)


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
def test_log_probabilities_and_entropy_equal_torch_distributions(spec) -> None:
    policy, params, g = made(spec)
    obs = torch.randn(3, 8, spec.obs_dim, generator=g)
    if spec.discrete:
        actions = torch.randint(spec.actions, (3, 8), generator=g)
    else:
        actions = 2 * torch.randn(3, 8, spec.actions, generator=g)
    log_probs, entropy = policy.log_prob(params, obs, actions)
    for n in range(3):
        theirs = TorchPolicy(spec, params[n], HIDDEN).distribution(obs[n])
        torch.testing.assert_close(log_probs[n], theirs.log_prob(actions[n]).detach())
        torch.testing.assert_close(entropy[n], theirs.entropy().detach())


def test_choices_come_with_their_probabilities() -> None:
    policy, params, g = made(CHOICE, 2)
    obs = torch.randn(2, 1, 3, generator=g).expand(2, 40_000, 3).contiguous()
    actions = policy.sampler(params)(obs, policy.draw(generator(3), 2, 40_000))
    for n in range(2):
        expected = TorchPolicy(CHOICE, params[n], HIDDEN).distribution(obs[n, 0]).probs
        shares = torch.bincount(actions[n], minlength=4) / 40_000
        torch.testing.assert_close(shares, expected.detach(), atol=0.012, rtol=0)
        assert (policy.greedy(params, obs)[n] == expected.argmax()).all()


def test_gumbel_noise_is_always_finite() -> None:
    policy, _, _ = made(CHOICE)
    assert torch.isfinite(policy.draw(generator(1), 500, 1000)).all()


def test_gaussian_actions_have_their_mean_and_deviation() -> None:
    policy, params, g = made(BOX, 2)
    obs = torch.randn(2, 1, 3, generator=g).expand(2, 40_000, 3).contiguous()
    actions = policy.sampler(params)(obs, policy.draw(generator(3), 2, 40_000))
    for n in range(2):
        theirs = TorchPolicy(BOX, params[n], HIDDEN).distribution(obs[n, 0])
        spread = theirs.stddev.detach()
        torch.testing.assert_close(policy.greedy(params, obs)[n, 0], theirs.mean.detach())
        assert ((actions[n].mean(0) - theirs.mean.detach()).abs() < 0.02 * spread).all()
        assert ((actions[n].std(0) / spread - 1).abs() < 0.02).all()


def test_actions_are_a_function_of_the_noise_and_each_row_of_its_own() -> None:
    for spec in (CHOICE, BOX):
        policy, params, g = made(spec)
        obs = torch.randn(3, 5, 3, generator=g)
        noise = policy.draw(generator(1), 3, 5)
        first = policy.sampler(params)(obs, noise)
        assert torch.equal(first, policy.sampler(params)(obs, noise))
        for n in range(3):
            alone = policy.sampler(params[n : n + 1])(obs[n : n + 1], noise[n : n + 1])
            assert torch.equal(alone[0], first[n])


def test_actions_are_cut_and_stretched_to_the_box() -> None:
    policy, _, _ = made(BOX)
    inside = policy.to_env(np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]]))
    assert inside.tolist() == [[-1.0, -2.0], [0.0, 1.0], [1.0, 4.0], [0.5, -0.5]]
    outside = policy.to_env(np.array([[-9.0, 9.0], [1.5, -1.0001]]))
    assert outside.tolist() == [[-1.0, 4.0], [1.0, -2.0]]


def test_unbounded_actions_pass_as_they_are() -> None:
    low, high = np.array([-np.inf, 0.0]), np.array([np.inf, 2.0])
    policy = make_policy(EnvSpec("open", 3, False, 2, 10, low, high), HIDDEN)
    assert policy.to_env(np.array([[-7.5, -7.5]])).tolist() == [[-7.5, 0.0]]
    assert np.isfinite(policy.to_env(np.zeros((1, 2)))).all()


def test_first_policies_are_nearly_uniform() -> None:
    for spec in (CHOICE, BOX):
        policy = make_policy(spec, HIDDEN)
        theirs = TorchPolicy(spec, policy.init(generator(0)), HIDDEN)
        found = theirs.distribution(torch.randn(20, 3))
        if spec.discrete:
            assert ((found.probs - 0.25).abs() < 0.02).all()
        else:
            assert (found.mean.abs() < 0.1).all()
            assert (found.stddev == 1.0).all()
