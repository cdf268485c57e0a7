"""Losses against hand-computed values."""

import math

import pytest
import torch
from helpers import policy_loss

from privrl_bench.functional.losses import value_loss

# Ratios 2, 0.5, 1.1, 2, 0.5 with advantages of both signs.
RATIOS = torch.tensor([[2.0, 0.5, 1.1, 2.0, 0.5]])
ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0]])


def test_the_surrogate_without_clip_is_the_mean_of_ratio_times_advantage() -> None:
    loss = policy_loss(RATIOS.log() - 3.0, torch.full((1, 5), -3.0), ADVANTAGES, None)
    assert loss.tolist() == pytest.approx([-(2 + 0.5 + 1.1 - 2 - 0.5) / 5])


def test_the_clip_takes_the_worse_of_both() -> None:
    loss = policy_loss(RATIOS.log(), torch.zeros(1, 5), ADVANTAGES, 0.2)
    assert loss.tolist() == pytest.approx([-(1.2 + 0.5 + 1.1 - 2.0 - 0.8) / 5])


def test_the_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    logp = torch.zeros(1, 5, requires_grad=True)
    policy_loss(logp, torch.zeros(1, 5), ADVANTAGES, 0.2).sum().backward()
    torch.testing.assert_close(logp.grad, -ADVANTAGES / 5)


def test_value_loss_is_half_the_mean_squared_error() -> None:
    values = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    targets = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
    assert value_loss(values, targets).tolist() == [1.25, 4.0]


def test_clipped_value_loss_takes_the_worse_of_both() -> None:
    values, targets = torch.tensor([[1.0, 0.1, -1.0]]), torch.tensor([[2.0, 2.0, 2.0]])
    # From 0 with clip 0.2: predictions count as 0.2 (worse), 0.1, and stay -1.0 (worse than -0.2).
    expected = 0.5 * (1.8**2 + 1.9**2 + 3.0**2) / 3
    assert float(value_loss(values, targets, torch.zeros(1, 3), 0.2)) == pytest.approx(expected)
    unclipped = 0.5 * (1.0 + 1.9**2 + 9.0) / 3
    assert math.isclose(float(value_loss(values, targets)), unclipped, rel_tol=1e-6)
