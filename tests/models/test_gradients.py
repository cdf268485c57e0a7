"""Manual gradients against autograd."""

import numpy as np
import pytest
import torch
from helpers import policy_loss

from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import (
    CategoricalPolicy,
    GaussianPolicy,
    MultiCategoricalPolicy,
    Surrogate,
)
from privrl_bench.types import EnvSpec

N, B, D, A = 3, 7, 5, 4
BOX = EnvSpec("box", D, False, A, 10, np.full(A, -1.0), np.full(A, 1.0))
CHOICES = EnvSpec("choices", D, True, A, 10)
SEVERAL = EnvSpec("several", D, False, 3, 10, choices=(2, 1, 4))


@pytest.mark.parametrize("hidden", [(8,), (6, 9), (4, 5, 6)])
def test_mlp_gradient(hidden):
    torch.manual_seed(0)
    net = Mlp(D, hidden, 2)
    params = torch.randn(N, net.size, requires_grad=True)
    x, weight = torch.randn(N, B, D), torch.randn(N, B, 2)
    (expected,) = torch.autograd.grad((net.forward(params, x) * weight).sum(), params)
    unpacked = net.unpack(params.detach())
    got = net.gradient(unpacked, net.layers(unpacked, x), weight)
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("ratio_clip", [None, 0.2])
@pytest.mark.parametrize(
    "policy",
    [
        CategoricalPolicy(CHOICES, (8, 6)),
        GaussianPolicy(BOX, (8, 6)),
        MultiCategoricalPolicy(SEVERAL, (8, 6)),
    ],
)
def test_surrogate_gradient(policy, ratio_clip):
    torch.manual_seed(1)
    start = 0.5 * torch.randn(N, policy.size)
    params = (start + 0.1 * torch.randn_like(start)).requires_grad_(True)
    obs = torch.randn(N, B, D)
    noise = policy.draw(torch.Generator().manual_seed(2), N, B)
    actions = policy.sampler(start)(obs, noise)
    old, _ = policy.log_prob(start, obs, actions)
    advantages = torch.randn(N, B)
    log_probs, entropy = policy.log_prob(params, obs, actions)
    loss = policy_loss(log_probs, old, advantages, ratio_clip) - 0.3 * entropy.mean(-1)
    (expected,) = torch.autograd.grad(loss.sum(), params)
    minibatch = Surrogate(obs, actions, old, advantages)
    got = policy.surrogate_gradient(params.detach(), minibatch, ratio_clip, 0.3)
    assert torch.allclose(got, expected, atol=1e-5)
    if ratio_clip is not None:
        plain = policy.surrogate_gradient(params.detach(), minibatch, None, 0.3)
        assert not torch.allclose(got, plain), "nothing was clipped; the case tests nothing"
