"""A user's training: every user trains a copy of the parameters on their own data.

A row of one user depends on no other user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.base import take_steps
from privrl_bench.functional.discounted_returns import normalize
from privrl_bench.functional.losses import surrogate_loss, value_loss
from privrl_bench.functional.optim import Adam, adam_start, adam_step, project
from privrl_bench.kernels.machine import uses_kernels
from privrl_bench.kernels.mlp_training import train_users
from privrl_bench.kernels.policy_heads import SQUARED, Head
from privrl_bench.models.cnn import Network
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import NetPolicy
from privrl_bench.types import State

LAST = "last_actor"


@dataclass(frozen=True)
class PolicyObjective:
    """The policy loss (`functional.losses.surrogate_loss`) minus the entropy bonus, of every user.

    An objective is defined twice, for the two implementations of a user's training: as a function of tensors,
    and as the head of a network for compiled code. Tests compare the two.

    Attributes:
        policy: the trained policy.
        ratio_clip: bound of |ratio - 1| (PPO); None for none.
        entropy_coef: weight of the mean entropy.
        normalize: standardise the advantages of each minibatch.
    """

    policy: NetPolicy
    ratio_clip: float | None
    entropy_coef: float
    normalize: bool
    columns: ClassVar[tuple[str, ...]] = ("obs", "action", "old", "advantage")

    @property
    def net(self) -> Network:
        """The policy's network."""
        return self.policy.net

    def loss(self, params: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """The users' losses.

        Args:
            params: [N, P] parameters of N users; further ones of a policy follow those of the network.
            batch: minibatches [N, B, ...] of `columns`.

        Returns:
            [N], differentiable in `params`.
        """
        advantage = batch["advantage"]
        every = torch.ones_like(advantage, dtype=torch.bool)
        if self.normalize:
            advantage = normalize(advantage, every)
        log_probs, entropy = self.policy.log_prob(params, batch["obs"], batch["action"])
        loss = surrogate_loss(log_probs, batch["old"], advantage, every, self.ratio_clip)
        return loss - self.entropy_coef * entropy.mean(-1)

    def head(self) -> Head | None:
        """The loss as an argument of `train_users`; None: it is not compiled."""
        kind = self.policy.kernel_head
        if kind is None:
            return None
        clip = float("inf") if self.ratio_clip is None else self.ratio_clip
        return Head(kind, clip, self.entropy_coef, self.normalize)


@dataclass(frozen=True)
class ValueObjective:
    """A quarter of the mean squared error, the weight used in the authors' code.

    Attributes:
        net: network with one output, the value.
    """

    net: Network
    columns: ClassVar[tuple[str, ...]] = ("obs", "target")

    def loss(self, params: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """See `PolicyObjective.loss`."""
        return 0.5 * value_loss(self.net.forward(params, batch["obs"])[..., 0], batch["target"])

    def head(self) -> Head | None:
        """See `PolicyObjective.head`."""
        return Head(SQUARED)


TrainingObjective = PolicyObjective | ValueObjective


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


class UserTrainer:
    """Trains every user on their own data, with Adam or by gradient descent, in an L2 ball around the start.

    Each user has their own parameters, minibatches, gradients and moments; nothing is shared between users.
    In single precision on the CPU (`uses_kernels`) training is compiled and sequential, one user after the
    other on each of torch's threads. Otherwise, and for losses and networks that are not compiled (several
    choices, convolutions), it is batched. The two are equal up to rounding (tested).

    Args:
        objective: loss of each user.
        device: torch device of the computation.

    Source: "Differentially Private Policy Gradient", algorithm 3.
    """

    def __init__(self, objective: TrainingObjective, device: str = "cpu"):
        self.objective = objective
        self._device = device

    def __call__(
        self, start: Tensor, data: dict[str, Tensor], optimizer: UserOptimizerConfig
    ) -> Tensor:
        """Train every user's copy of the parameters.

        Args:
            start: [N, P] initial parameters.
            data: tensors [N, T, ...] of the users' own steps, with the objective's columns.
            optimizer: minibatches, step size, bound and moments.

        Returns:
            [N, P] displacements, where `start` is.
        """
        if compiled(self.objective) and uses_kernels(start, self._device):
            return sequential(start, data, optimizer, self.objective)
        return batched(start, data, optimizer, self.objective, self._device)


def compiled(objective: TrainingObjective) -> bool:
    """Whether there is compiled code for the objective's network and loss."""
    return isinstance(objective.net, Mlp) and objective.head() is not None


def sequential(
    start: Tensor,
    data: dict[str, Tensor],
    optimizer: UserOptimizerConfig,
    objective: TrainingObjective,
) -> Tensor:
    """Train every user in compiled code; arguments and result as in `UserTrainer.__call__`."""
    columns = [data[name].float() for name in objective.columns]
    table = torch.cat([x if x.dim() == 3 else x.unsqueeze(-1) for x in columns], dim=-1).numpy()
    net, kind = objective.net, objective.head()
    assert isinstance(net, Mlp)
    assert kind is not None
    widths = np.array([net.inputs, *net.hidden, net.outputs])
    arrays = [x.contiguous().numpy() for x in (start, optimizer.adam.m, optimizer.adam.v)]
    indices, head = optimizer.order.numpy(), tuple(kind)
    result = np.empty_like(arrays[0])

    train_users(
        *arrays,
        table,
        indices,
        widths,
        head,
        int(optimizer.adam.step),
        optimizer.lr,
        optimizer.radius,
        optimizer.plain,
        result,
    )
    return torch.from_numpy(result)


def batched(
    start: Tensor,
    data: dict[str, Tensor],
    optimizer: UserOptimizerConfig,
    objective: TrainingObjective,
    device: str = "cpu",
) -> Tensor:
    """Train all users by the same tensor operations, in any precision and on any device (a GPU).

    Arguments and result as in `UserTrainer.__call__`.
    """
    adam = optimizer.adam
    begin = start.to(device)
    columns = {name: data[name].to(device) for name in objective.columns}
    params, adam = begin, Adam(adam.m.to(device), adam.v.to(device), adam.step)
    for index in optimizer.order.to(device).movedim(2, 1).flatten(0, 1):  # [N, B] each
        batch = {name: take_steps(x, index) for name, x in columns.items()}
        leaf = params.detach().requires_grad_()
        (grad,) = torch.autograd.grad(objective.loss(leaf, batch).sum(), leaf)
        if optimizer.plain:
            moved = params - optimizer.lr * grad
        else:
            moved, adam = adam_step(params, grad, adam, optimizer.lr)
        params = begin + project(moved - begin, optimizer.radius)
    return (params - begin).to(start.device)


def adam_passes(
    train: UserTrainer,
    clip: float,
    state: State,
    start: Tensor,
    data: dict[str, Tensor],
    order: Tensor,
    lr: float,
) -> Tensor:
    """Passes of Adam over each user's data, inside a ball of radius `clip`.

    Moments begin at zero, or (`LAST` is in the state) from the last release, which is the paper's.

    Args:
        train: of the policy's objective.
        clip: radius of the ball.
        state: current state.
        start: [N, P] released parameters of N = R * U users.
        data: tensors [N, T, ...] of the users' own steps, with the objective's columns.
        order: [E, N, M, B] indices of steps, from `algorithms.base.step_order`.
        lr: step size of a user's training.

    Returns:
        [N, P] displacements of the users' parameters, of norm at most `clip`.

    Source: "Differentially Private Policy Gradient", algorithm 3.
    """
    adam = adam_start(start)
    if LAST in state.tensors and state.round > 0:
        last = state.tensors[LAST].repeat_interleave(len(start) // len(state.tensors[LAST]), 0)
        adam = adam._replace(m=last, v=last**2, step=state.round * order[:, 0, :, 0].numel())
    return train(start, data, UserOptimizerConfig(order, lr, clip, adam))


def one_gradient(
    train: UserTrainer,
    clip: float,
    state: State,
    start: Tensor,
    data: dict[str, Tensor],
    order: Tensor,
    lr: float,
) -> Tensor:
    """The gradient [N, P] of one pass over each user's data; arguments as in `adam_passes`, `lr` is not used.

    `row_norm.py` scales it. Of the norm that noise is added for, more is common to all users than of the
    displacement by several steps of a user, which also fits what is particular to one user's data.
    """
    whole = order[:1].flatten(2).unsqueeze(2)  # one minibatch: [1, N, 1, M * B]
    once = UserOptimizerConfig(whole, 1.0, float("inf"), adam_start(start), plain=True)
    return train(start, data, once)


# `algo.user_update` -> what a user of DPPG sends
USER_UPDATES = {"adam": adam_passes, "gradient": one_gradient}
