"""Discounted returns and advantages along trajectories; time is the last axis."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimates.

    Args:
        rewards, values, next_values: [..., T]; `next_values` belong to the state after the step,
            before any reset, so that a time limit bootstraps and a termination does not.
        terminated: [..., T] bool, no value follows.
        done: [..., T] bool, the next step belongs to another episode.
        gamma, lam: discount and lambda.

    Returns: [..., T] advantages; advantages + values are the lambda-returns.

    Source: Schulman et al. 2016, equation 16.
    """
    deltas = rewards + gamma * next_values * (~terminated) - values
    carry = gamma * lam * (~done).to(deltas.dtype)
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


def standardize(x: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean and divide by the unbiased standard deviation over the last axis, where `mask` holds.

    As `normalize` without its epsilon. Where there is nothing to divide by, one number or equal numbers (up to
    rounding), and outside `mask` the result is 0.
    """
    weight = mask.to(x.dtype)
    count = weight.sum(-1, keepdim=True)
    kept = torch.where(mask, x, 0.0)
    centred = (kept - kept.sum(-1, keepdim=True) / count.clamp_min(1.0)) * weight
    spread = ((centred**2).sum(-1, keepdim=True) / (count - 1.0).clamp_min(1.0)).sqrt()
    rounding = 8.0 * torch.finfo(x.dtype).eps * kept.abs().amax(-1, keepdim=True)
    return torch.where(spread > rounding, centred / spread, 0.0)
