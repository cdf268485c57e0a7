"""A user's training: every user trains a copy of the parameters on their own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.base import take_steps
from privrl_bench.functional.discounted_returns import normalize
from privrl_bench.functional.losses import surrogate_loss, value_loss
from privrl_bench.functional.optim import Adam, adam_step, project
from privrl_bench.kernels.machine import uses_kernels
from privrl_bench.kernels.mlp_training import train_users
from privrl_bench.kernels.policy_heads import SQUARED, Head
from privrl_bench.models.cnn import Network
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import NetPolicy


class TrainingObjective(Protocol):
    """The loss of every user, on minibatches of tensors [N, B, ...] named as in `columns`.

    It is defined twice, for the two implementations of a user's training: as a function of tensors, and as the
    head of a network for compiled code. Tests compare the two.
    """

    columns: ClassVar[tuple[str, ...]]

    @property
    def net(self) -> Network:
        """The trained network; further parameters of a policy follow those of the network."""
        ...

    def loss(self, params: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """The users' losses [N], differentiable in their parameters [N, P]; `batch` [N, B, ...]."""
        ...

    def head(self) -> Head | None:
        """The loss as an argument of `train_users`; None: it is not compiled."""
        ...


@dataclass(frozen=True)
class PolicyObjective:
    """The policy loss (`functional.losses.surrogate_loss`) minus the entropy bonus.

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
        """See `TrainingObjective.loss`."""
        advantage = batch["advantage"]
        every = torch.ones_like(advantage, dtype=torch.bool)
        if self.normalize:
            advantage = normalize(advantage, every)
        log_probs, entropy = self.policy.log_prob(params, batch["obs"], batch["action"])
        loss = surrogate_loss(log_probs, batch["old"], advantage, every, self.ratio_clip)
        return loss - self.entropy_coef * entropy.mean(-1)

    def head(self) -> Head | None:
        """See `TrainingObjective.head`."""
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
        """See `TrainingObjective.loss`."""
        return 0.5 * value_loss(self.net.forward(params, batch["obs"])[..., 0], batch["target"])

    def head(self) -> Head | None:
        """See `TrainingObjective.head`."""
        return Head(SQUARED)


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
        self._batched = BatchedUserTrainer(objective, device)

    def __call__(
        self, start: Tensor, data: dict[str, Tensor], optimizer: UserOptimizerConfig
    ) -> Tensor:
        """Train every user's copy of the parameters.

        Args:
            start: [N, P] initial parameters.
            data: tensors [N, T, ...] of the users' own steps, with the objective's columns.
            optimizer: minibatches, step size, bound and moments.

        Returns:
            [N, P] displacements, on the CPU.
        """
        if compiled(self.objective) and uses_kernels(start, self._device):
            return sequential(start, data, optimizer, self.objective)
        return self._batched(start, data, optimizer)


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


class BatchedUserTrainer:
    """Trains all users by the same tensor operations, in any precision and on any device (a GPU).

    Args:
        objective: loss of each user.
        device: torch device of the computation.
    """

    def __init__(self, objective: TrainingObjective, device: str):
        self._objective = objective
        self._device = torch.device(device)

    def __call__(
        self, start: Tensor, data: dict[str, Tensor], optimizer: UserOptimizerConfig
    ) -> Tensor:
        """Train every user's copy of the parameters; see `UserTrainer.__call__`."""
        device, adam = self._device, optimizer.adam
        begin = start.to(device)
        columns = {name: data[name].to(device) for name in self._objective.columns}
        params, adam = begin, Adam(adam.m.to(device), adam.v.to(device), adam.step)
        for index in optimizer.order.to(device).movedim(2, 1).flatten(0, 1):  # [N, B] each
            batch = {name: take_steps(x, index) for name, x in columns.items()}
            leaf = params.detach().requires_grad_()
            (grad,) = torch.autograd.grad(self._objective.loss(leaf, batch).sum(), leaf)
            if optimizer.plain:
                moved = params - optimizer.lr * grad
            else:
                moved, adam = adam_step(params, grad, adam, optimizer.lr)
            params = begin + project(moved - begin, optimizer.radius)
        return (params - begin).cpu()
