"""Noise that published code adds inside training, beside the gate: an imitation, never a guarantee by itself.

`per_transition`: Gaussian noise on every clipped gradient of a minibatch (Doulazmi and Odonnat, algorithm 3).
Where it is used, a caveat stands in the guarantee.
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_TRANSITION = (
    "noise is added to gradients of single transitions, while all later ones of an episode depend on each; "
    "exploration and the number of updates depend on them without noise; and while the memory is not full, "
    "each is drawn more often than epsilon counts"
)


def sample_noise(draws: list[torch.Generator], size: int) -> Tensor:
    """[R, size] standard normals, from each replica's own stream."""
    return torch.stack([torch.randn(size, generator=g) for g in draws])
