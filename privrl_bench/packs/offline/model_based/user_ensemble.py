"""A user's training of an ensemble: every user trains copies of all members on their own trajectory.

Source: "Differentially Private Deep Model-Based RL" (Rio, Barlier, Colin, Thomas), algorithms 2 and 3.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from privrl_bench.functional.optim import adam_start, adam_step, project
from privrl_bench.kernels.machine import uses_kernels
from privrl_bench.packs.offline.model_based import ensemble_training
from privrl_bench.packs.offline.model_based.ensemble import Ensemble
from privrl_bench.packs.offline.model_based.model_based_settings import PrimorlConfig


class Clipping(NamedTuple):
    """The parts of a row that are clipped separately, each to the same radius (EnsembleClip, algorithm 3).

    The M models of a row, or the L layers of each model, share the bound C: parts of C / sqrt(M), or of
    C / sqrt(M L), so that the L2 norm of the row is at most C.

    Attributes:
        ends: ends of the parts of one model.
        radius: L2 bound of each part.
    """

    ends: tuple[int, ...]
    radius: float


def clipping(ensemble: Ensemble, kind: str, bound: float) -> Clipping:
    """The parts of an ensemble's rows.

    Args:
        ensemble: the models.
        kind: "flat" for one part per model, "layer" for one part per layer of each model (its weights and
            biases together).
        bound: L2 bound of a row.
    """
    if kind == "flat":
        return Clipping((ensemble.net.size,), bound / ensemble.members**0.5)
    ends = list(itertools.accumulate((a + 1) * b for a, b in ensemble.net.shapes))
    return Clipping(tuple(ends), bound / (ensemble.members * len(ends)) ** 0.5)


def train(
    ensemble: Ensemble,
    start: Tensor,
    replica: Tensor,
    data: tuple[Tensor, Tensor],
    order: Tensor,
    config: PrimorlConfig,
    clip: Clipping,
    device: str = "cpu",
) -> Tensor:
    """Train every user's models, each part inside a ball around its start after every step.

    Compiled code trains them in single precision on the CPU (`uses_kernels`), tensor operations otherwise; the
    two are equal up to rounding (tested).

    Args:
        ensemble: the models.
        start: [R, M * P] initial parameters.
        replica: [N] replica of each user.
        data: inputs [N, T, I] and targets [N, T, K] of the users.
        order: [E, N, minibatches, B] indices into T, from `algorithms.base.step_order`.
        config: `model_lr`, `model_decay` (L2 penalty of all parameters) and `model_optimizer` (adam: with new
            moments for every user).
        clip: separately clipped parts.
        device: torch device of the computation.

    Returns:
        [N, M * P] displacements, on the CPU.
    """
    if not uses_kernels(start, device):
        return train_batched(ensemble, start.to(device), replica, data, order, config, clip).cpu()
    net, users = ensemble.net, len(replica)
    result = np.empty((users, ensemble.members, net.size), np.float32)
    ensemble_training.train_models(
        start.reshape(len(start), ensemble.members, net.size).contiguous().numpy(),
        replica.numpy(),
        torch.cat(data, dim=-1).float().contiguous().numpy(),
        order.numpy(),
        np.array([net.inputs, *net.hidden, net.outputs]),
        np.array(clip.ends),
        clip.radius,
        config.model_lr,
        config.model_decay,
        config.model_optimizer == "adam",
        result,
    )
    return torch.from_numpy(result).reshape(users, ensemble.members * net.size)


def train_batched(
    ensemble: Ensemble,
    start: Tensor,
    replica: Tensor,
    data: tuple[Tensor, Tensor],
    order: Tensor,
    config: PrimorlConfig,
    clip: Clipping,
) -> Tensor:
    """Train all users and members by the same tensor operations; arguments and result as in `train`."""
    inputs, targets = (x.to(start) for x in data)
    members, size = ensemble.members, ensemble.net.size
    begin = start.reshape(len(start), members, size)[replica].reshape(-1, size)
    params, adam = begin, adam_start(begin)
    whose = torch.arange(len(replica), device=start.device).repeat_interleave(members)
    for piece in order.to(start.device).movedim(2, 1).flatten(0, 1):  # [N, B] each
        rows = piece[whose].unsqueeze(-1)
        x = inputs[whose].take_along_dim(rows, 1)
        y = targets[whose].take_along_dim(rows, 1)
        leaf = params.detach().requires_grad_()
        loss = ensemble.loss(ensemble.net.forward(leaf, x), y).sum()
        (grad,) = torch.autograd.grad(loss, leaf)
        grad = grad + config.model_decay * params
        if config.model_optimizer == "adam":
            params, adam = adam_step(params, grad, adam, config.model_lr)
        else:
            params = params - config.model_lr * grad
        params = begin + clipped(params - begin, clip)
    return (params - begin).reshape(len(replica), members * size)


def clipped(displacement: Tensor, clip: Clipping) -> Tensor:
    """Project displacements of models, each part onto its ball.

    Args:
        displacement: [N, P].
        clip: the parts.
    """
    sizes = np.diff([0, *clip.ends]).tolist()
    parts = displacement.split(sizes, dim=-1)
    return torch.cat([project(part, clip.radius) for part in parts], dim=-1)
