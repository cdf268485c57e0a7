"""Optimiser steps as pure functions of tensors with any leading axes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Adam(NamedTuple):
    """Adam's moments and its step count."""

    m: Tensor
    v: Tensor
    step: int | Tensor


def adam_start(like: Tensor) -> Adam:
    """Return zero moments of the shape of `like`."""
    return Adam(torch.zeros_like(like), torch.zeros_like(like), 0)


def adam_step(
    params: Tensor,
    grad: Tensor,
    state: Adam,
    lr: float | Tensor,
    eps: float = 1e-5,
    beta1: float = 0.9,
    beta2: float = 0.999,
) -> tuple[Tensor, Adam]:
    """Take one descent step of Adam (Kingma and Ba 2015, algorithm 1)."""
    step = state.step + 1
    m = torch.lerp(state.m, grad, 1.0 - beta1)
    v = beta2 * state.v + (1.0 - beta2) * grad * grad
    size = lr / (1.0 - beta1**step)
    denominator = (v / (1.0 - beta2**step)).sqrt_().add_(eps)
    return params - m.div(denominator).mul_(size), Adam(m, v, step)


class AmsGrad(NamedTuple):
    """Moments, elementwise maximum of the second moments so far, and a step count that broadcasts."""

    m: Tensor
    v: Tensor
    peak: Tensor
    step: Tensor


def amsgrad_step(
    params: Tensor,
    grad: Tensor,
    state: AmsGrad,
    lr: float,
    decay: float,
    eps: float = 1e-8,
    beta1: float = 0.9,
    beta2: float = 0.999,
) -> tuple[Tensor, AmsGrad]:
    """Take one descent step of AdamW with AMSGrad, as in torch; `decay` is the decoupled weight decay.

    Source:
        Loshchilov and Hutter 2019 (AdamW), Reddi et al. 2018 (AMSGrad).
    """
    step = state.step + 1
    m = torch.lerp(state.m, grad, 1.0 - beta1)
    v = beta2 * state.v + (1.0 - beta2) * grad * grad
    peak = torch.maximum(state.peak, v)
    size = lr / (1.0 - beta1**step)
    denominator = (peak / (1.0 - beta2**step)).sqrt_().add_(eps)
    return params * (1.0 - lr * decay) - size * m / denominator, AmsGrad(m, v, peak, step)


def rmsprop_step(
    params: Tensor, grad: Tensor, square: Tensor, lr: float, alpha: float = 0.99, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Take one descent step of RMSprop; return the parameters and the running mean square."""
    square = alpha * square + (1.0 - alpha) * grad * grad
    return params - lr * grad / (square.sqrt() + eps), square


def project(displacement: Tensor, radius: float | Tensor) -> Tensor:
    """Project displacements [..., P] onto the L2 ball of `radius`."""
    norms = torch.linalg.vector_norm(displacement, dim=-1, keepdim=True)
    return displacement * torch.clamp(radius / norms.clamp_min(1e-30), max=1.0)


def limit_norm(gradients: list[Tensor], bound: float) -> list[Tensor]:
    """Scale gradients so that their joint L2 norm over the last axis is at most `bound`."""
    squares = torch.stack([(g * g).sum(-1) for g in gradients]).sum(0)
    scale = torch.clamp(bound / (squares.sqrt() + 1e-6), max=1.0)[..., None]
    return [g * scale for g in gradients]
