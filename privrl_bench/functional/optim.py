"""Optimiser steps as pure functions of tensors with any leading axes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Adam(NamedTuple):
    """Adam's moments and its step count, which broadcasts.

    Attributes:
        m: first moments.
        v: second moments.
        step: steps so far.
        peak: elementwise maximum of the second moments so far (AMSGrad); None: plain Adam.
    """

    m: Tensor
    v: Tensor
    step: int | Tensor
    peak: Tensor | None = None


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
    decay: float = 0.0,
) -> tuple[Tensor, Adam]:
    """Take one descent step of Adam, or of AMSGrad if `state` has a peak; `decay` is AdamW's weight decay.

    Source:
        Kingma and Ba 2015, algorithm 1; Reddi et al. 2018 (AMSGrad); Loshchilov and Hutter 2019 (AdamW).
    """
    step = state.step + 1
    m = torch.lerp(state.m, grad, 1.0 - beta1)
    v = beta2 * state.v + (1.0 - beta2) * grad * grad
    peak = None if state.peak is None else torch.maximum(state.peak, v)
    size = lr / (1.0 - beta1**step)
    denominator = ((v if peak is None else peak) / (1.0 - beta2**step)).sqrt_().add_(eps)
    kept = params * (1.0 - lr * decay) if decay else params
    # The order of the operations is that of the recorded runs, to the last bit.
    change = m.div(denominator).mul_(size) if peak is None else (size * m).div_(denominator)
    return kept - change, Adam(m, v, step, peak)


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
