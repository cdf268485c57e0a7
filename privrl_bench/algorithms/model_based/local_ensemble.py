"""Local training of an ensemble: every user's own copies of all members, on her own trajectory.

Source: "Differentially Private Deep Model-Based RL" (Rio, Barlier, Colin, Thomas), algorithms 2 and 3.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from privrl_bench.functional.optim import Adam, adam_start, adam_step, project
from privrl_bench.kernels import ensemble_training
from privrl_bench.kernels.machine import over_threads, uses_kernels
from privrl_bench.models.ensemble import Ensemble


class Clipping(NamedTuple):
    """Which parts of a row are clipped separately, each to the same radius (EnsembleClip, algorithm 3).

    The M models of a row, or the L layers of each, share the bound C: parts of C / sqrt(M), or of
    C / sqrt(M L), so that the whole row is at most C long.

    Attributes:
        ends: where the parts of one model end.
        radius: of every part.
    """

    ends: tuple[int, ...]
    radius: float


def clipping(ensemble: Ensemble, kind: str, bound: float) -> Clipping:
    """`kind` flat: by model; layer: by layer of each model (its weights and biases together)."""
    if kind == "flat":
        return Clipping((ensemble.net.size,), bound / ensemble.members**0.5)
    ends = list(itertools.accumulate((a + 1) * b for a, b in ensemble.net.shapes))
    return Clipping(tuple(ends), bound / (ensemble.members * len(ends)) ** 0.5)


class LocalOptimizerConfig(NamedTuple):
    """How a user's models learn.

    Attributes:
        order: [E, N, minibatches, B] indices into T (`base.step_order`).
        lr: step size.
        decay: L2 penalty of all parameters.
        adam: Adam with fresh moments for every user; else plain gradient steps.
    """

    order: Tensor
    lr: float
    decay: float
    adam: bool


def train(
    ensemble: Ensemble,
    start: Tensor,
    replica: Tensor,
    data: tuple[Tensor, Tensor],
    optimizer: LocalOptimizerConfig,
    clip: Clipping,
    device: str = "cpu",
) -> Tensor:
    """Displacement of every user's models after her pass, kept inside the parts' balls at every step.

    Args:
        start: [R, M * P]; replica: [N] which of them a user's copies start from.
        data: inputs [N, T, I] and targets [N, T, K] of the users.

    Returns: [N, M * P] on the CPU. In compiled code, or on another device or in double precision all users
        at once by tensor operations, equal up to rounding (tested).
    """
    if uses_kernels(start, device):
        return _sequential(ensemble, start, replica, data, optimizer, clip)
    return train_batched(ensemble, start.to(device), replica, data, optimizer, clip).cpu()


def _sequential(
    ensemble: Ensemble,
    start: Tensor,
    replica: Tensor,
    data: tuple[Tensor, Tensor],
    optimizer: LocalOptimizerConfig,
    clip: Clipping,
) -> Tensor:
    net, users = ensemble.net, len(replica)
    table = torch.cat(data, dim=-1).float().contiguous().numpy()
    begin = start.reshape(len(start), ensemble.members, net.size).contiguous().numpy()
    whose, order = replica.numpy(), optimizer.order.numpy()
    widths = np.array([net.inputs, *net.hidden, net.outputs])
    result = np.empty((users, ensemble.members, net.size), np.float32)
    ends = np.array(clip.ends)

    def some(part: slice) -> None:
        ensemble_training.train_models(
            begin,
            whose[part],
            table[part],
            order[:, part],
            widths,
            ends,
            clip.radius,
            optimizer.lr,
            optimizer.decay,
            optimizer.adam,
            result[part],
        )

    over_threads(users, some)
    return torch.from_numpy(result).reshape(users, ensemble.members * net.size)


def train_batched(
    ensemble: Ensemble,
    start: Tensor,
    replica: Tensor,
    data: tuple[Tensor, Tensor],
    optimizer: LocalOptimizerConfig,
    clip: Clipping,
) -> Tensor:
    """See `train`; all users and members in the same tensor operations."""
    inputs, targets = (x.to(start) for x in data)
    members, size = ensemble.members, ensemble.net.size
    begin = start.reshape(len(start), members, size)[replica].reshape(-1, size)
    params, adam = begin, adam_start(begin)
    whose = torch.arange(len(replica), device=start.device).repeat_interleave(members)
    for piece in optimizer.order.to(start.device).movedim(2, 1).flatten(0, 1):  # [N, B] each
        rows = piece[whose].unsqueeze(-1)
        x = inputs[whose].take_along_dim(rows, 1)
        y = targets[whose].take_along_dim(rows, 1)
        leaf = params.detach().requires_grad_()
        loss = ensemble.loss(ensemble.net.forward(leaf, x), y).sum()
        (grad,) = torch.autograd.grad(loss, leaf)
        params, adam = _step(params, grad + optimizer.decay * params, adam, optimizer)
        params = begin + clipped(params - begin, clip)
    return (params - begin).reshape(len(replica), members * size)


def _step(params: Tensor, grad: Tensor, adam: Adam, optimizer: LocalOptimizerConfig) -> tuple[Tensor, Adam]:
    if optimizer.adam:
        return adam_step(params, grad, adam, optimizer.lr)
    return params - optimizer.lr * grad, adam


def clipped(displacement: Tensor, clip: Clipping) -> Tensor:
    """[N, P] displacements of models with every part back inside its ball."""
    sizes = np.diff([0, *clip.ends]).tolist()
    parts = displacement.split(sizes, dim=-1)
    return torch.cat([project(part, clip.radius) for part in parts], dim=-1)
