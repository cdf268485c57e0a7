"""Independent choices: probabilities, samples, and equality with one choice."""

import itertools

import numpy as np
import torch

from privrl_bench.algorithms.policy_gradient.user_training import PolicyObjective
from privrl_bench.models.policy import CategoricalPolicy, MultiCategoricalPolicy
from privrl_bench.types import EnvSpec

SPEC = EnvSpec("several", 3, False, 2, 10, choices=(2, 3))
ONE = EnvSpec("one", 3, True, 4, 10)
SAME = EnvSpec("one of several", 3, False, 1, 10, choices=(4,))


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradient(policy, params, batch, clip):
    """Of the policy loss with an entropy bonus of 0.1."""
    leaf = params.clone().requires_grad_()
    loss = PolicyObjective(policy, clip, 0.1, False).loss(leaf, batch).sum()
    return torch.autograd.grad(loss, leaf)[0]


def test_probabilities_are_those_of_the_samples():
    policy = MultiCategoricalPolicy(SPEC, (6,))
    params, obs = random(1, policy.size), random(1, 1, 3, seed=1)
    every = torch.tensor([*itertools.product(range(2), range(3))], dtype=torch.float32)[None]
    logs, entropy = policy.log_prob(params, obs.expand(1, 6, 3), every)
    assert torch.allclose(logs.exp().sum(), torch.tensor(1.0))
    assert torch.allclose(entropy[0, 0], -(logs.exp() * logs).sum(), atol=1e-5)
    drawn = policy.sampler(params)(
        obs.expand(1, 20_000, 3), policy.draw(torch.Generator().manual_seed(2), 1, 20_000)
    )
    counts = np.bincount((drawn[0, :, 0] * 3 + drawn[0, :, 1]).long(), minlength=6) / 20_000
    assert np.abs(counts - logs.exp()[0].numpy()).max() < 0.015
    best = every[0, logs[0].argmax()]
    assert torch.equal(policy.greedy(params, obs)[0, 0], best)


def test_one_coordinate_is_the_softmax_policy():
    one, same = CategoricalPolicy(ONE, (6,)), MultiCategoricalPolicy(SAME, (6,))
    assert one.size == same.size
    params, obs = random(2, one.size), random(2, 5, 3, seed=1)
    noise = one.draw(torch.Generator().manual_seed(3), 2, 5)
    assert torch.equal(noise, same.draw(torch.Generator().manual_seed(3), 2, 5))
    actions = one.sampler(params)(obs, noise)
    assert torch.equal(actions, same.sampler(params)(obs, noise)[..., 0].long())
    several = actions.float().unsqueeze(-1)
    for mine, other in zip(
        same.log_prob(params, obs, several), one.log_prob(params, obs, actions), strict=True
    ):
        assert torch.allclose(mine, other)
    old, advantages = random(2, 5, seed=4), random(2, 5, seed=5)
    for clip in (None, 0.2):
        expected, got = (
            gradient(
                policy, params, {"obs": obs, "action": x, "old": old, "advantage": advantages}, clip
            )
            for policy, x in ((one, actions), (same, several))
        )
        assert torch.allclose(got, expected, atol=1e-6)
