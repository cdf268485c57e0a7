"""Rewards of an answer, token by token, and the loss that learns from them; the last axis is its tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(
    scores: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, kl_coef: float
) -> Tensor:
    """Reward of every token: the answer's score on its last one, less `kl_coef` times the log ratio.

    Args:
        scores: [...] of whole answers.
        logprobs, reference: [..., T] log probabilities of the tokens under the policy that wrote them, and
            under the frozen start.
        mask: [..., T] bool, the answer has this token; its tokens come first.
        kl_coef: weight of the penalty, fixed.

    Returns: [..., T]; 0 outside `mask`.

    Source: Ziegler et al. 2019, equation 2, spread over the tokens as TRL's PPOTrainer does.
    """
    rewards = torch.where(mask, -kl_coef * (logprobs - reference), 0.0)
    last = mask & ~torch.nn.functional.pad(mask[..., 1:], (0, 1))
    return rewards + torch.where(last, scores[..., None], 0.0)


def reward_to_go(rewards: Tensor) -> Tensor:
    """[..., T] undiscounted sum of the rewards from each token on."""
    return rewards.flip(-1).cumsum(-1).flip(-1)


def surrogate_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, ratio_clip: float | None
) -> Tensor:
    """Minus the mean over an answer's tokens of ratio times advantage; with `ratio_clip`, PPO's clipped form.

    Args:
        logprobs, old: [..., T] under the policy in training, and under the one that wrote the answer.
        advantages: [..., T].
        mask: [..., T] bool.
        ratio_clip: largest useful change of the ratio; None: any.

    Returns: [...]; 0 for an answer without tokens.

    Source: Schulman et al. 2017, equations 6 and 7.
    """
    ratio = torch.where(mask, logprobs - old, 0.0).exp()
    gain = ratio * advantages
    if ratio_clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - ratio_clip, 1 + ratio_clip) * advantages)
    weight = mask.to(gain.dtype)
    return -(gain * weight).sum(-1) / weight.sum(-1).clamp_min(1.0)
