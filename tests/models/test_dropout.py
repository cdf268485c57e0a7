"""Dropout while acting: masks, samples and gradients against torch's own."""

import pytest
import torch
from helpers import CHOICE, module_of

from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.types import generator

HIDDEN = (30, 7)


def made(dropout=0.5, hidden=HIDDEN, count=3):
    policy = DropoutPolicy(CHOICE, hidden, dropout)
    g = torch.Generator().manual_seed(0)
    return policy, 0.5 * torch.randn(count, policy.size, generator=g, dtype=torch.float64), g


def by_hand(policy, vector, obs, masks, hidden=HIDDEN):
    """Logits of one network with dropout as a multiplication before torch's ReLU."""
    network = module_of(vector, [CHOICE.obs_dim, *hidden, CHOICE.actions], torch.nn.ReLU)
    x, left = obs, list(masks)
    for layer in network:
        if isinstance(layer, torch.nn.ReLU):
            x = left.pop(0) * x
        x = layer(x)
    return x, network


@pytest.mark.parametrize("dropout", [0.5, 0.3, 0.75])
def test_units_are_dropped_independently_with_their_probability_and_scaled(dropout) -> None:
    policy, _, _ = made(dropout)
    masks = policy.keep(policy.draw(generator(5), 10_000, 2))
    assert [m.shape for m in masks] == [(10_000, 2, 30), (10_000, 2, 7)]
    mask = torch.cat(masks, dim=-1).flatten(0, 1)
    assert mask.unique().tolist() == [0.0, pytest.approx(1 / (1 - dropout))]
    kept = (mask > 0).double()
    torch.testing.assert_close(
        kept.mean(0), torch.full((37,), 1 - dropout).double(), atol=0.02, rtol=0
    )
    others = torch.corrcoef(kept.T) - torch.eye(37)
    assert others.abs().max() < 0.04
    steps = kept.reshape(10_000, 2, 37)
    assert abs(float(torch.corrcoef(steps[:, :, 0].T)[0, 1])) < 0.04


def test_no_dropout_keeps_everything_and_draws_the_actions_noise_only() -> None:
    policy, params, g = made(0.0)
    noise = policy.draw(generator(5), 3, 8)
    assert noise.shape == (3, 8, 4)
    obs = torch.randn(3, 8, 3, generator=g, dtype=torch.float64)
    logits = policy.net.forward(params, obs)
    assert torch.equal(policy.sampler(params)(obs, noise), (logits + noise).argmax(-1))


@pytest.mark.parametrize("hidden", [(30, 7), (5,), ()], ids=str)
@pytest.mark.parametrize("dropout", [0.5, 0.3])
def test_scores_equal_autograd_through_torch_modules(hidden, dropout) -> None:
    policy, params, g = made(dropout, hidden)
    obs = torch.randn(3, 8, 3, generator=g, dtype=torch.float64)
    noise = policy.draw(generator(6), 3, 8)
    actions = policy.sampler(params)(obs, noise)
    weights = torch.randn(3, 8, generator=g, dtype=torch.float64)
    weights[1, 5:] = 0.0
    found = policy.score(params, obs, actions, noise, weights)
    masks = policy.keep(noise)
    for n in range(3):
        logits, network = by_hand(policy, params[n], obs[n], [m[n] for m in masks], hidden)
        assert torch.equal((logits + noise[n, :, :4]).argmax(-1), actions[n])
        log_probs = torch.distributions.Categorical(logits=logits).log_prob(actions[n])
        (weights[n] * log_probs).sum().backward()
        layers = [x for x in network if isinstance(x, torch.nn.Linear)]
        expected = [p for x in layers for p in (x.weight.grad.T.flatten(), x.bias.grad)]
        torch.testing.assert_close(found[n], torch.cat(expected))


def test_evaluation_acts_without_dropout() -> None:
    policy, params, g = made()
    obs = torch.randn(3, 50, 3, generator=g, dtype=torch.float64)
    for n in range(3):
        ones = [torch.ones(1, w) for w in HIDDEN]
        logits, _ = by_hand(policy, params[n], obs[n], ones)
        assert torch.equal(policy.greedy(params, obs)[n], logits.argmax(-1))


def test_weights_begin_as_xavier_normal_and_biases_at_zero() -> None:
    policy = DropoutPolicy(CHOICE, (400,), 0.5)
    (first, bias), (last, bias_2) = policy.net.unpack(policy.init(generator(1))[None])
    assert not bias.any()
    assert not bias_2.any()
    assert float(first.std()) == pytest.approx((2 / 403) ** 0.5, rel=0.06)
    assert float(last.std()) == pytest.approx((2 / 404) ** 0.5, rel=0.06)
