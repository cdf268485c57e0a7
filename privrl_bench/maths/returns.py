"""Discounted returns and advantages along trajectories; time is the last axis."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimates.

    Args:
        rewards, values, next_values: [..., T]; `next_values` belong to the state after the step,
            before any reset, so that a time limit bootstraps and a termination does not.
        terminated: [..., T] bool, no value follows.
        ended: [..., T] bool, the next step belongs to another episode.
        gamma, lam: discount and lambda.

    Returns: [..., T] advantages; advantages + values are the lambda-returns.

    Source: Schulman et al. 2016, equation 16.
    """
    deltas = rewards + gamma * next_values * (~terminated) - values
    carry = gamma * lam * (~ended).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    last = torch.zeros_like(deltas[..., 0])
    for t in range(deltas.shape[-1] - 1, -1, -1):
        last = deltas[..., t] + carry[..., t] * last
        advantages[..., t] = last
    return advantages


def normalize(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """Subtract the mean and divide by the standard deviation over the last axis, where `mask` holds.

    Each leading index (a user) is normalised by its own numbers only. Entries outside `mask` become 0.
    """
    weight = mask.to(x.dtype)
    count = weight.sum(-1, keepdim=True).clamp_min(1.0)
    mean = (x * weight).sum(-1, keepdim=True) / count
    centred = (x - mean) * weight
    variance = (centred**2).sum(-1, keepdim=True) / (count - 1.0).clamp_min(1.0)
    return centred / (variance.sqrt() + eps)
