"""What a user of DPPG sends: a displacement of the policy's parameters, of norm at most `privacy.clip`.

Each takes the released parameters and the user's own data. A row of one user depends on no other user.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from privrl_bench.algorithms.policy_gradient.user_training import (
    UserOptimizerConfig,
    UserTrainer,
)
from privrl_bench.functional.optim import adam_start
from privrl_bench.types import State

LAST = "last_actor"


class UserUpdate(Protocol):
    """Computes the users' rows."""

    def __call__(
        self, state: State, start: Tensor, data: dict[str, Tensor], order: Tensor, lr: float
    ) -> Tensor:
        """Compute the displacements of N = R * U users.

        Args:
            state: current state.
            start: [N, P] released parameters.
            data: tensors [N, T, ...] of the users' own steps, with the objective's columns.
            order: [E, N, M, B] indices of steps, from `algorithms.base.step_order`.
            lr: step size of a user's training.

        Returns:
            [N, P], of norm at most `clip`.
        """
        ...


class AdamPasses:
    """Passes of Adam over the user's data, inside a ball of radius `clip`.

    Moments begin at zero, or (`LAST` is in the state) from the last release, which is the paper's.

    Args:
        trainer: of the policy's objective.
        clip: radius of the ball.

    Source: "Differentially Private Policy Gradient", algorithm 3.
    """

    def __init__(self, trainer: UserTrainer, clip: float):
        self._train = trainer
        self._clip = clip

    def __call__(
        self, state: State, start: Tensor, data: dict[str, Tensor], order: Tensor, lr: float
    ) -> Tensor:
        """See `UserUpdate`."""
        adam = adam_start(start)
        if LAST in state.tensors and state.round > 0:
            last = state.tensors[LAST].repeat_interleave(len(start) // len(state.tensors[LAST]), 0)
            adam = adam._replace(m=last, v=last**2, step=state.round * order[:, 0, :, 0].numel())
        return self._train(start, data, UserOptimizerConfig(order, lr, self._clip, adam))


class OneGradient:
    """The gradient of one pass over the user's data, scaled to norm `clip`.

    All users move the policy equally far. Of the norm that noise is added for, more is common to all users
    than of the displacement by several steps of a user, which also fits what is particular to one user's data.

    Args:
        trainer: of the policy's objective.
        clip: norm of every row. The gradient zero stays zero.
    """

    def __init__(self, trainer: UserTrainer, clip: float):
        self._train = trainer
        self._clip = clip

    def __call__(
        self, state: State, start: Tensor, data: dict[str, Tensor], order: Tensor, lr: float
    ) -> Tensor:
        """See `UserUpdate`; `lr` is not used, since rows have a fixed norm."""
        whole = order[:1].flatten(2).unsqueeze(2)  # one minibatch: [1, N, 1, M * B]
        once = UserOptimizerConfig(whole, 1.0, float("inf"), adam_start(start), plain=True)
        gradient = self._train(start, data, once)
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        return gradient * (self._clip / norm.clamp_min(1e-30))


USER_UPDATES: dict[str, type[AdamPasses] | type[OneGradient]] = {
    "adam": AdamPasses,
    "gradient": OneGradient,
}
