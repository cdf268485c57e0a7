"""Losses of values and policies, one per leading index (user, replica or answer), and rewards of tokens."""

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


def token_rewards(
    scores: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, kl_coef: float
) -> Tensor:
    """Compute the reward of each token: the score at the last token, minus a KL penalty at every token.

    Args:
        scores: [...] of complete answers.
        logprobs: [..., T] log-probabilities of the tokens under the policy that generated them.
        reference: [..., T] log-probabilities under the frozen start model.
        mask: [..., T] bool, true for tokens of the answer, which come first.
        kl_coef: Fixed weight of the penalty, which is the log ratio of policy to reference.

    Returns:
        [..., T]; 0 outside `mask`.

    Source:
        Ziegler et al. 2019, equation 2, applied per token as in TRL's PPOTrainer.
    """
    rewards = torch.where(mask, -kl_coef * (logprobs - reference), 0.0)
    last = mask & ~torch.nn.functional.pad(mask[..., 1:], (0, 1))
    return rewards + torch.where(last, scores[..., None], 0.0)


def reward_to_go(rewards: Tensor) -> Tensor:
    """Return the undiscounted reward to go of each token, [..., T]."""
    return rewards.flip(-1).cumsum(-1).flip(-1)


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
