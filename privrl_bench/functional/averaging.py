"""Averages of released parameters, which cost no privacy: post-processing."""

from __future__ import annotations

import torch
from torch import Tensor

AVERAGE = "average"  # state tensor [R, P]: what is evaluated and saved in place of `actor`


def deployed(tensors: dict[str, Tensor], actor: Tensor) -> Tensor:
    """[R, P] parameters that are evaluated and saved: the average if the state has one, or those that act."""
    return tensors.get(AVERAGE, actor)


def averaged(
    tensors: dict[str, Tensor], averaging: float | None, index: float | Tensor
) -> dict[str, Tensor]:
    """The state's tensors with the average of `actor` after a round or a step; without averaging, as they are.

    Polynomial decay: it covers about the last 1 / (averaging + 1) of the rounds or steps so far.

    Args:
        tensors: with `actor` [R, P] as it is after round or step `index`.
        averaging: `algo.averaging`.
        index: from 0; [R, 1] where replicas differ.

    Source: Shamir and Zhang 2013, "Stochastic gradient descent for non-smooth optimization", section 4.
    """
    if averaging is None:
        return tensors
    actor = tensors["actor"]
    weight = (averaging + 1.0) / (averaging + 1.0 + index)  # of the newest parameters
    return tensors | {AVERAGE: torch.lerp(tensors.get(AVERAGE, actor), actor, weight)}
