"""Local training: every user's own copy of the parameters, all users at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privrl_bench.maths.optim import Adam, adam_step, project

Gradient = Callable[[Tensor, dict[str, Tensor]], Tensor]


def train_in_ball(
    start: Tensor,
    data: dict[str, Tensor],
    order: Tensor,
    gradient: Gradient,
    lr: float,
    radius: float,
    adam: Adam,
    device: str = "cpu",
) -> Tensor:
    """Displacement of every user after E passes of Adam that never leave the clip ball.

    Users do not meet: every user has her own parameters, minibatch, gradient and moments.

    Args:
        start: [N, P] parameters that all copies start from.
        data: tensors [N, T, ...] of the users' own steps.
        order: [E, N, M, B] from `step_order`.
        gradient: (params [N, P], minibatch of `data` [N, B, ...]) -> [N, P].
        lr: step size of Adam.
        radius: L2 bound of the displacement, enforced after every step.
        adam: moments to start from.
        device: where to compute.

    Returns: [N, P] on the CPU.

    Source: "Differentially Private Policy Gradient", algorithm 3.
    """
    start = start.to(device)
    data = {name: x.to(device) for name, x in data.items()}
    adam = Adam(adam.m.to(device), adam.v.to(device), adam.step)
    params = start
    with torch.inference_mode():
        for epoch in order.to(device):
            count, minibatches, size = epoch.shape
            flat = epoch.reshape(count, -1)
            shuffled = {
                name: torch.take_along_dim(x, flat.view(*flat.shape, *[1] * (x.dim() - 2)), dim=1)
                for name, x in data.items()
            }
            for m in range(minibatches):
                piece = slice(m * size, (m + 1) * size)
                batch = {name: x[:, piece] for name, x in shuffled.items()}
                moved, adam = adam_step(params, gradient(params, batch), adam, lr)
                params = start + project(moved - start, radius)
    return (params - start).cpu().clone()
