"""Discounted returns and advantages along trajectories. The last axis is time."""

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
    """Compute generalised advantage estimates.

    Args:
        rewards: [..., T].
        values: [..., T] of the state before each step.
        next_values: [..., T] of the state after each step, before any reset. Hence a time limit
            bootstraps and a termination does not.
        terminated: [..., T] bool, the state after the step has value 0.
        done: [..., T] bool, the next step belongs to another episode.
        gamma: Discount.
        lam: Lambda.

    Returns:
        [..., T] advantages; advantages + values are the lambda-returns.

    Source:
        Schulman et al. 2016, equation 16.
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
    """Subtract the mean and divide by the standard deviation over the last axis, where `mask` is true.

    Each leading index (a user) is normalised by its own values only. Entries outside `mask` become 0.
    """
    weight = mask.to(x.dtype)
    count = weight.sum(-1, keepdim=True).clamp_min(1.0)
    mean = (x * weight).sum(-1, keepdim=True) / count
    centred = (x - mean) * weight
    variance = (centred**2).sum(-1, keepdim=True) / (count - 1.0).clamp_min(1.0)
    return centred / (variance.sqrt() + eps)


def standardize(x: Tensor, mask: Tensor) -> Tensor:
    """Standardise over the last axis where `mask` is true, by the unbiased standard deviation.

    As `normalize`, without its epsilon. The result is 0 outside `mask`, and where the standard deviation
    is 0 up to rounding or not defined (a single value).
    """
    weight = mask.to(x.dtype)
    count = weight.sum(-1, keepdim=True)
    kept = torch.where(mask, x, 0.0)
    centred = (kept - kept.sum(-1, keepdim=True) / count.clamp_min(1.0)) * weight
    spread = ((centred**2).sum(-1, keepdim=True) / (count - 1.0).clamp_min(1.0)).sqrt()
    rounding = 8.0 * torch.finfo(x.dtype).eps * kept.abs().amax(-1, keepdim=True)
    return torch.where(spread > rounding, centred / spread, 0.0)
