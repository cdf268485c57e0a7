"""Random and regular Fourier features, independent of any data."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

_MOST_WAVES = 100_000


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


def fourier_waves(inputs: int, order: int, joint: int | None = None) -> Tensor:
    """Return the coefficients of a Fourier basis: vectors c in {0, ..., order}^D, the last entry fastest.

    Args:
        inputs: D.
        order: Largest coefficient.
        joint: Keep vectors with at most this many nonzero entries; None: all (order + 1)^D.

    Returns:
        [F, D] integers, as float64.

    Raises:
        ValueError: The basis is too large.

    Source:
        Konidaris, Osentoski and Thomas 2011.
    """
    if order < 0 or inputs < 1 or (order + 1) ** inputs > _MOST_WAVES:
        raise ValueError(f"no Fourier basis of order {order} in {inputs} dimensions")
    every = itertools.product(range(order + 1), repeat=inputs)
    kept = [c for c in every if joint is None or sum(x > 0 for x in c) <= joint]
    return torch.tensor(kept, dtype=torch.float64)


def fourier_features(obs: Tensor, low: Tensor, high: Tensor, waves: Tensor) -> Tensor:
    """Compute the Fourier features cos(pi c . s), s = x scaled from a box to [0, 1]^D and clipped.

    The first feature, of c = 0, is constantly 1.

    Args:
        obs: [..., D] x.
        low: [D] lower corner of the box.
        high: [D] upper corner.
        waves: [F, D] the vectors c, see `fourier_waves`.

    Returns:
        [..., F].
    """
    s = ((obs - low) / (high - low)).clamp(0.0, 1.0)
    return (s @ waves.to(s).T).mul_(math.pi).cos_()


def fourier_steps(waves: Tensor) -> Tensor:
    """Return step size factors [F]: 1 / ||c||, and 1 for c = 0."""
    norm = waves.norm(dim=-1)
    return torch.where(norm > 0, 1.0 / norm.clamp(min=1.0), 1.0)
