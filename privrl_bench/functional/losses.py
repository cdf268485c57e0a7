"""Value losses, one per leading index (user or replica)."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Compute half the mean squared error over the last axis.

    Args:
        values: [..., B] predictions.
        targets: [..., B].
        old_values: [..., B] predictions before the update; needed with `clip`.
        clip: Clip range of the change of a prediction, as in CleanRL; None: not clipped.

    Returns:
        [...].
    """
    loss = (values - targets) ** 2
    if clip is not None and old_values is not None:
        limited = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (limited - targets) ** 2)
    return 0.5 * loss.mean(-1)


def value_slope(
    values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Return the derivative [..., B] of `value_loss` with respect to `values`."""
    error = values - targets
    slope = error
    if clip is not None and old_values is not None:
        moved = values - old_values
        limited = old_values + moved.clamp(-clip, clip) - targets
        # Where the clipped form is the larger loss, it is constant in `values` beyond the clip.
        slope = torch.where(
            limited**2 > error**2, torch.where(moved.abs() <= clip, limited, 0.0), error
        )
    return slope / values.shape[-1]
