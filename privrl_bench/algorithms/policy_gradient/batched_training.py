"""Local training by tensor operations on all users at once: on a GPU, and in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import take_steps
from privrl_bench.functional.optim import Adam, adam_step, project

if TYPE_CHECKING:
    from privrl_bench.algorithms.policy_gradient.user_training import Objective


class UserOptimizerConfig(NamedTuple):
    """Settings of every user's training.

    Attributes:
        order: [E, N, M, B] indices of the users' steps, from `algorithms.base.step_order`: M minibatches
            of B steps in each of E epochs.
        lr: step size.
        radius: L2 bound of the displacement, enforced after every step.
        adam: initial moments [N, P].
        plain: gradient descent instead of Adam.
    """

    order: Tensor
    lr: float
    radius: float
    adam: Adam
    plain: bool = False


class BatchedUserTrainer:
    """Trains all users by the same tensor operations, in any precision and on any device.

    Args:
        objective: loss of each user.
        device: torch device of the computation.
    """

    def __init__(self, objective: Objective, device: str):
        self._objective = objective
        self._device = torch.device(device)

    def __call__(
        self, start: Tensor, data: dict[str, Tensor], optimizer: UserOptimizerConfig
    ) -> Tensor:
        """Train every user's copy of the parameters; see `UserTrainer.__call__`."""
        device, adam = self._device, optimizer.adam
        with torch.inference_mode():
            begin = start.to(device)
            columns = {name: data[name].to(device) for name in self._objective.columns}
            params, adam = begin, Adam(adam.m.to(device), adam.v.to(device), adam.step)
            for index in optimizer.order.to(device).movedim(2, 1).flatten(0, 1):  # [N, B] each
                batch = {name: take_steps(x, index) for name, x in columns.items()}
                grad = self._objective.gradient(params, batch)
                if optimizer.plain:
                    moved = params - optimizer.lr * grad
                else:
                    moved, adam = adam_step(params, grad, adam, optimizer.lr)
                params = begin + project(moved - begin, optimizer.radius)
            return (params - begin).cpu()
