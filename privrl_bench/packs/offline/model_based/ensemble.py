"""An ensemble of Gaussian one-step models: (observation, action) -> (change of observation, reward).

Observations are scaled, actions in [-1, 1]; `Units` standardises the targets. A member's network outputs
means and log variances, the latter softly bounded by constants. (MOPO's code learns the bounds; here all
trained parameters are part of a member's vector, which is clipped.)

Source:
    Yu et al. 2020 (MOPO), Chua et al. 2018; PriMORL, table 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from privrl_bench.models.mlp import Mlp
from privrl_bench.packs.offline.model_based.ensemble_training import LEAST, MOST


class Units(NamedTuple):
    """Public constants [D + 1]: a target is (change or reward - mean) / std."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Ensemble:
    """`members` networks of the same shape with parameters [..., members * size].

    Attributes:
        members: M.
        net: From (observation, action) to (means, log variances) of D + 1 targets.
        units: Of the targets.
    """

    members: int
    net: Mlp
    units: Units

    @property
    def targets(self) -> int:
        """Number of targets, D + 1: the changes of the observation, then the reward."""
        return self.net.outputs // 2

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [M * size]; members differ."""
        return torch.cat([self.net.init(generator, 1.0) for _ in range(self.members)])

    def draw(self, generator: torch.Generator, size: int) -> Tensor:
        """Draw standard normals [size, D + 1], for sampling from a member's Gaussian."""
        return torch.randn(size, self.targets, generator=generator)

    def target(self, obs: Tensor, next_obs: Tensor, reward: Tensor) -> Tensor:
        """Return standardised targets [..., D + 1]."""
        raw = torch.cat([next_obs - obs, reward.unsqueeze(-1)], dim=-1)
        return (raw - self.units.mean.to(raw.dtype)) / self.units.std.to(raw.dtype)

    def predict(self, params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Predict with all members.

        Args:
            params: [R, M * size].
            x: [R, B, D + A] observations and actions.

        Returns:
            Means and log variances, [R, M, B, D + 1].
        """
        count = len(params)
        each = x.unsqueeze(1).expand(-1, self.members, -1, -1).flatten(0, 1)
        outputs = self.net.forward(params.reshape(count * self.members, -1), each)
        mean, log_var = self.heads(outputs)
        shape = (count, self.members, *mean.shape[1:])
        return mean.reshape(shape), log_var.reshape(shape)

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split a network's outputs into means and softly bounded log variances."""
        mean, free = outputs.chunk(2, dim=-1)
        below = MOST - softplus(MOST - free)
        return mean, LEAST + softplus(below - LEAST)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Compute the mean [...] over steps and targets of twice the Gaussian NLL, up to a constant."""
        mean, log_var = self.heads(outputs)
        return ((mean - target).square() * (-log_var).exp() + log_var).mean((-1, -2))
