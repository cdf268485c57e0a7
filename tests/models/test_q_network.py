"""Epsilon-greedy actions; gradients of single samples against autograd."""

import pytest
import torch
from helpers import CHOICE, module_of

from privrl_bench.models.mlp import Mlp
from privrl_bench.models.q_network import QPolicy

POLICY = QPolicy(CHOICE, (7, 6))


def test_epsilon_is_the_share_of_random_actions():
    g = torch.Generator().manual_seed(0)
    params = torch.stack([POLICY.init(g) for _ in range(3)])
    params[:, -1] = torch.tensor([0.0, 0.4, 1.0])
    obs = torch.randn(3, 4000, CHOICE.obs_dim, generator=g)
    actions = POLICY.sampler(params)(obs, POLICY.draw(g, 3, 4000))
    best = POLICY.greedy(params, obs)
    share = (actions != best).float().mean(-1)
    assert torch.allclose(share, 0.75 * params[:, -1], atol=0.03)
    assert set(actions[2].tolist()) == {0, 1, 2, 3}
    counts = torch.bincount(actions[2])
    assert (counts - 1000).abs().max() < 120


def test_greedy_takes_the_largest_value():
    params = POLICY.init(torch.Generator().manual_seed(0))[None]
    obs = torch.randn(1, 50, CHOICE.obs_dim)
    net = module_of(params[0, :-1], [3, 7, 6, 4], torch.nn.ReLU)
    assert torch.equal(POLICY.greedy(params, obs)[0], net(obs[0]).argmax(-1))


def test_weights_begin_as_torchs_do():
    net = Mlp(9, (400,), 300, "relu")
    found = net.unpack(net.init_uniform(torch.Generator().manual_seed(0))[None])
    for (weight, bias), fan_in in zip(found, (9, 400), strict=True):
        bound = fan_in**-0.5
        linear = torch.nn.Linear(fan_in, 300)
        for x, torchs in ((weight, linear.weight), (bias, linear.bias)):
            assert float(x.abs().max()) <= bound
            assert float(x.abs().max()) == pytest.approx(float(torchs.abs().max()), rel=0.05)
            assert float(x.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
