"""Averages of released parameters, which cost no privacy: post-processing."""

from __future__ import annotations

import torch
from torch import Tensor

AVERAGE = "average"  # state tensor [R, P]: what is evaluated and saved in place of `actor`


def averaging_weight(averaging: float, round_index: int) -> float:
    """Weight of the newest parameters in polynomial-decay averaging, after round `round_index` (from 0).

    The average covers about the last 1 / (averaging + 1) of the rounds so far.

    Source: Shamir and Zhang 2013, "Stochastic gradient descent for non-smooth optimization", section 4.
    """
    return (averaging + 1.0) / (averaging + 1.0 + round_index)


def averaged(
    tensors: dict[str, Tensor], averaging: float | None, round_index: int
) -> dict[str, Tensor]:
    """The state's tensors with the average of `actor` after a round; without averaging, as they are.

    Args:
        tensors: with `actor` [R, P] as it is after round `round_index`.
        averaging: `algo.averaging`.
        round_index: from 0.
    """
    if averaging is None:
        return tensors
    actor = tensors["actor"]
    weight = averaging_weight(averaging, round_index)
    return tensors | {AVERAGE: torch.lerp(tensors.get(AVERAGE, actor), actor, weight)}
