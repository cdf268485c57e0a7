"""Local training: every user's own copy of the parameters, all users of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.policy_gradient.batched_training import (
    BatchedLocalTrainer,
    LocalOptimizerConfig,
)
from privrl_bench.functional.discounted_returns import normalize
from privrl_bench.kernels import mlp_training as fused
from privrl_bench.kernels.threads import over_threads
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import CategoricalPolicy, NetPolicy, Surrogate


class Objective(Protocol):
    """What every user descends on, her minibatch being tensors [N, B, ...] named as in `columns`.

    Stated twice, for the two ways to compute it: as a function of tensors, and as the head of a network
    for compiled code. Tests hold them together.
    """

    columns: ClassVar[tuple[str, ...]]

    @property
    def net(self) -> Mlp:
        """The network that it trains; further parameters of a policy follow those of the network."""
        ...

    def gradient(self, params: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[N, P] gradients of N users' losses at params [N, P]."""
        ...

    def head(self) -> fused.Head:
        """The same for `fused.train_users`."""
        ...


@dataclass(frozen=True)
class PolicyObjective:
    """The policy loss minus `entropy_coef` times the mean entropy (`Policy.surrogate_gradient`)."""

    policy: NetPolicy
    ratio_clip: float | None
    entropy_coef: float
    normalize: bool  # the advantages of each minibatch
    columns: ClassVar[tuple[str, ...]] = ("obs", "action", "old", "advantage")

    @property
    def net(self) -> Mlp:
        """The policy's network."""
        return self.policy.net

    def gradient(self, params: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """See `Objective.gradient`."""
        advantage = batch["advantage"]
        if self.normalize:
            advantage = normalize(advantage, torch.ones_like(advantage, dtype=torch.bool))
        minibatch = Surrogate(batch["obs"], batch["action"], batch["old"], advantage)
        return self.policy.surrogate_gradient(params, minibatch, self.ratio_clip, self.entropy_coef)

    def head(self) -> fused.Head:
        """See `Objective.head`."""
        discrete = isinstance(self.policy, CategoricalPolicy)
        kind = fused.CATEGORICAL if discrete else fused.GAUSSIAN
        clip = float("inf") if self.ratio_clip is None else self.ratio_clip
        return fused.Head(kind, clip, self.entropy_coef, self.normalize)


@dataclass(frozen=True)
class ValueObjective:
    """A quarter of the mean squared error: 0.5 * `value_loss`, as the authors' code weighs it."""

    net: Mlp
    columns: ClassVar[tuple[str, ...]] = ("obs", "target")

    def gradient(self, params: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """See `Objective.gradient`."""
        unpacked = self.net.unpack(params)
        layers = self.net.layers(unpacked, batch["obs"])
        error = layers[-1] - batch["target"].unsqueeze(-1)
        return self.net.gradient(unpacked, layers, error * (0.5 / error.shape[1]))

    def head(self) -> fused.Head:
        """See `Objective.head`."""
        return fused.Head(fused.SQUARED)


class LocalTrainer:
    """Algorithm 3: every user's Adam on her own data, never leaving the clip ball.

    Users do not meet: every user has her own parameters, minibatch, gradient and moments. On the CPU in
    single precision users are trained one after the other in compiled code, spread over torch's threads;
    elsewhere all at once by tensor operations, equal up to rounding (tested).

    Args:
        objective: what every user descends on.
        device: where to compute.

    Source: "Differentially Private Policy Gradient", algorithm 3.
    """

    def __init__(self, objective: Objective, device: str = "cpu"):
        self.objective = objective
        self._device = device
        self._together: BatchedLocalTrainer | None = None

    def __call__(
        self, start: Tensor, data: dict[str, Tensor], descent: LocalOptimizerConfig
    ) -> Tensor:
        """Displacement of every user after E passes.

        Args:
            start: [N, P] parameters that all copies start from.
            data: tensors [N, T, ...] of the users' own steps, with the objective's columns.
            descent: how.

        Returns: [N, P] on the CPU.
        """
        if self._device == "cpu" and start.dtype == torch.float32:
            return sequential(start, data, descent, self.objective)
        if self._together is None:
            self._together = BatchedLocalTrainer(self.objective, self._device)
        return self._together(start, data, descent)


def sequential(
    start: Tensor, data: dict[str, Tensor], descent: LocalOptimizerConfig, objective: Objective
) -> Tensor:
    """See `LocalTrainer`; in compiled code."""
    columns = [data[name].float() for name in objective.columns]
    table = torch.cat([x if x.dim() == 3 else x.unsqueeze(-1) for x in columns], dim=-1).numpy()
    widths = np.array([objective.net.inputs, *objective.net.hidden, objective.net.outputs])
    arrays = [x.contiguous().numpy() for x in (start, descent.adam.m, descent.adam.v)]
    indices, result, head = descent.order.numpy(), np.empty_like(arrays[0]), tuple(objective.head())

    def some(part: slice) -> None:
        fused.train_users(
            *(x[part] for x in arrays),
            table[part],
            indices[:, part],
            widths,
            head,
            int(descent.adam.step),
            descent.lr,
            descent.radius,
            result[part],
        )

    over_threads(len(start), some)
    return torch.from_numpy(result)
