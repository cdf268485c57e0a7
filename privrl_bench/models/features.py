"""Random Fourier features, independent of any data."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class FourierFeatures:
    """Random features sqrt(2/F) cos(x Omega + b) of a Gaussian kernel, and a constant.

    Args:
        inputs: D.
        features: F.
        frequency: Standard deviation of Omega, the inverse length scale of the kernel.
        generator: A public stream.

    Source:
        Rahimi and Recht 2007, algorithm 1.
    """

    def __init__(self, inputs: int, features: int, frequency: float, generator: torch.Generator):
        self.size = features + 1
        self._omega = frequency * torch.randn(inputs, features, generator=generator)
        self._phase = 2 * math.pi * torch.rand(features, generator=generator)
        self._scale = math.sqrt(2.0 / features)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features [..., F + 1] of x [..., D]."""
        waves = (
            (x @ self._omega.to(x.device)).add_(self._phase.to(x.device)).cos_().mul_(self._scale)
        )
        return torch.cat([waves, torch.ones_like(waves[..., :1])], dim=-1)
