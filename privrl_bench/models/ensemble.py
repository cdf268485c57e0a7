"""An ensemble of Gaussian models of one step: (observation, action) -> change of observation, reward.

Observations are scaled, actions in [-1, 1]; `Units` scale what the networks predict. A member's network gives
means and log variances, the latter softly bounded by constants (in MOPO's code the bounds are learned; here
every trained number is inside a member's vector, and so inside a clip).

Source: Yu et al. 2020 (MOPO), Chua et al. 2018; PriMORL, table 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from privrl_bench.kernels.ensemble_training import LEAST, MOST
from privrl_bench.models.mlp import Mlp


class Units(NamedTuple):
    """Public constants [D + 1]: a target is (change or reward - mean) / std."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Ensemble:
    """`members` networks of the same shape with parameters [..., members * size].

    Attributes:
        members: M.
        net: from (observation, action) to (means, log variances) of D + 1 targets.
        units: of the targets.
    """

    members: int
    net: Mlp
    units: Units

    @property
    def targets(self) -> int:
        """D + 1: the changes of the observation, then the reward."""
        return self.net.outputs // 2

    def init(self, generator: torch.Generator) -> Tensor:
        """[M * size]; members differ."""
        return torch.cat([self.net.init(generator, 1.0) for _ in range(self.members)])

    def draw(self, generator: torch.Generator, size: int) -> Tensor:
        """[size, D + 1] standard normals, for steps that are drawn from a member's Gaussian."""
        return torch.randn(size, self.targets, generator=generator)

    def target(self, obs: Tensor, next_obs: Tensor, reward: Tensor) -> Tensor:
        """[..., D + 1] in the units of the networks."""
        raw = torch.cat([next_obs - obs, reward.unsqueeze(-1)], dim=-1)
        return (raw - self.units.mean.to(raw.dtype)) / self.units.std.to(raw.dtype)

    def predict(self, params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances [R, M, B, D + 1] of all members [R, M * size] at x [R, B, D + A]."""
        count = len(params)
        each = x.unsqueeze(1).expand(-1, self.members, -1, -1).flatten(0, 1)
        outputs = self.net.forward(params.reshape(count * self.members, -1), each)
        mean, log_var = self.heads(outputs)
        shape = (count, self.members, *mean.shape[1:])
        return mean.reshape(shape), log_var.reshape(shape)

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and softly bounded log variances from a network's outputs."""
        mean, free = outputs.chunk(2, dim=-1)
        below = MOST - softplus(MOST - free)
        return mean, LEAST + softplus(below - LEAST)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """[...] twice the Gaussian negative log likelihood but for a constant, mean over steps and targets."""
        mean, log_var = self.heads(outputs)
        return ((mean - target).square() * (-log_var).exp() + log_var).mean((-1, -2))
