"""Fixed random Fourier features: a basis that depends on no data."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class FourierFeatures:
    """phi(x) = sqrt(2/F) cos(x Omega + b), plus a constant; approximates a Gaussian kernel.

    Args:
        inputs: D.
        features: F.
        frequency: standard deviation of Omega; the inverse length scale of the kernel.
        generator: public stream.

    Source: Rahimi and Recht 2007, algorithm 1.
    """

    def __init__(self, inputs: int, features: int, frequency: float, generator: torch.Generator):
        self.size = features + 1
        self._omega = frequency * torch.randn(inputs, features, generator=generator)
        self._phase = 2 * math.pi * torch.rand(features, generator=generator)
        self._scale = math.sqrt(2.0 / features)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., F + 1]."""
        waves = (
            (x @ self._omega.to(x.device)).add_(self._phase.to(x.device)).cos_().mul_(self._scale)
        )
        return torch.cat([waves, torch.ones_like(waves[..., :1])], dim=-1)
