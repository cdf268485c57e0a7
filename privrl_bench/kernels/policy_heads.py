"""Policy losses of compiled training: derivatives by the outputs of a network.

The parts of `mlp_training` and `actor_critic_training`, in single precision on the CPU.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from privrl_bench.kernels.jit import part

CATEGORICAL, GAUSSIAN, SQUARED = 0, 1, 2


class Head(NamedTuple):
    """The loss of one user's minibatch, given the outputs of the network.

    Attributes:
        kind: CATEGORICAL or GAUSSIAN for the policy loss of `models.policy`, with the columns (choice or A
            actions, old log probability, advantage); SQUARED for a quarter of the mean squared error,
            with one column, the target.
        ratio_clip: bound of |ratio - 1|; infinite for none.
        entropy_coef: weight of the mean entropy.
        normalize: standardise the advantages of each minibatch.
    """

    kind: int
    ratio_clip: float = math.inf
    entropy_coef: float = 0.0
    normalize: bool = False


@part
def _slope(log_prob, old, advantage, ratio_clip, rows):  # type: ignore[no-untyped-def]
    """Derivative of the mean policy loss by one log probability, as of `functional.losses.surrogate_loss`."""
    ratio = np.exp(log_prob - old)
    if (advantage > 0 and ratio > 1 + ratio_clip) or (advantage < 0 and ratio < 1 - ratio_clip):
        return np.float32(0)
    return -ratio * advantage / np.float32(rows)


@part
def categorical(y, dy, rest, ratio_clip, entropy_coef):  # type: ignore[no-untyped-def]
    """Derivative of the policy loss by the logits, as of `functional.losses.surrogate_loss`.

    Args:
        y: [B, A] logits; overwritten by log probabilities.
        dy: [B, A], filled.
        rest: [B, 3] choice, old log probability, advantage.
        ratio_clip: as in `Head`.
        entropy_coef: as in `Head`.
    """
    rows, choices = y.shape
    for i in range(rows):
        top = y[i, 0]
        for j in range(1, choices):
            top = max(top, y[i, j])
        total = np.float32(0)
        for j in range(choices):
            total += np.exp(y[i, j] - top)
        shift = top + np.log(total)
        entropy = np.float32(0)
        for j in range(choices):
            y[i, j] -= shift
            dy[i, j] = np.exp(y[i, j])
            entropy -= dy[i, j] * y[i, j]
        chosen = int(rest[i, 0])
        slope = _slope(y[i, chosen], rest[i, 1], rest[i, 2], ratio_clip, rows)
        weight = entropy_coef / np.float32(rows)
        for j in range(choices):
            dy[i, j] *= weight * (y[i, j] + entropy) - slope
        dy[i, chosen] += slope


@part
def gaussian(y, dy, rest, log_std, d_log_std, ratio_clip, entropy_coef):  # type: ignore[no-untyped-def]
    """Derivative of the policy loss by means and log deviations, as of `surrogate_loss`.

    Args:
        y: [B, A] means.
        dy: [B, A], filled.
        rest: [B, A + 2] actions, old log probability, advantage.
        log_std: [A] log standard deviations.
        d_log_std: [A], filled.
        ratio_clip: as in `Head`.
        entropy_coef: as in `Head`.
    """
    rows, width = y.shape
    inverse = np.exp(-log_std)
    constant = np.float32(0)
    for j in range(width):
        constant += log_std[j] + np.float32(0.9189385332046727)  # log(2 pi) / 2
        d_log_std[j] = -entropy_coef
    for i in range(rows):
        squares = np.float32(0)
        for j in range(width):
            dy[i, j] = (rest[i, j] - y[i, j]) * inverse[j]
            squares += dy[i, j] * dy[i, j]
        log_prob = np.float32(-0.5) * squares - constant
        slope = _slope(log_prob, rest[i, width], rest[i, width + 1], ratio_clip, rows)
        for j in range(width):
            d_log_std[j] += slope * (dy[i, j] * dy[i, j] - np.float32(1))
            dy[i, j] *= slope * inverse[j]


@part
def standardize(x):  # type: ignore[no-untyped-def]
    """Standardise x [B] in place, as `functional.discounted_returns.normalize`."""
    mean = np.float32(0)
    for i in range(x.size):
        mean += x[i]
    mean /= np.float32(x.size)
    squares = np.float32(0)
    for i in range(x.size):
        x[i] -= mean
        squares += x[i] * x[i]
    scale = np.sqrt(squares / np.float32(max(x.size - 1, 1))) + np.float32(1e-8)
    for i in range(x.size):
        x[i] /= scale
