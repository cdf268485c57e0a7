"""Losses of values and policies, one per leading index (user, replica or answer)."""

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


def surrogate_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, ratio_clip: float | None
) -> Tensor:
    """Compute the policy loss: minus the mean over the steps in `mask` of ratio times advantage.

    Args:
        logprobs: [..., T] of the actions, or the tokens of an answer, under the policy in training.
        old: [..., T] under the policy that chose them.
        advantages: [..., T].
        mask: [..., T] bool.
        ratio_clip: PPO's clip range of the ratio; None: not clipped.

    Returns:
        [...]; 0 where the mask is empty.

    Source:
        Schulman et al. 2017, equations 6 and 7.
    """
    ratio = torch.where(mask, logprobs - old, 0.0).exp()
    gain = ratio * advantages
    if ratio_clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - ratio_clip, 1 + ratio_clip) * advantages)
    weight = mask.to(gain.dtype)
    return -(gain * weight).sum(-1) / weight.sum(-1).clamp_min(1.0)
