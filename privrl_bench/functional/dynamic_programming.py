"""Dynamic programming for finite-horizon problems with known tables.

Axes: H steps, S states, A actions. The tables are transitions [S, A, S] and rewards [S, A, S], the same at
every step; returns are undiscounted.
"""

from __future__ import annotations

import numpy as np


def backward(
    transitions: np.ndarray, rewards: np.ndarray, horizon: int, policy: np.ndarray | None = None
) -> np.ndarray:
    """Compute action values by backward induction.

    Args:
        transitions: [S, A, S] probabilities.
        rewards: [S, A, S].
        horizon: H.
        policy: [..., H, S, A] action probabilities; None: the optimal policy.

    Returns:
        [..., H, S, A] expected return from each step on.
    """
    pay = (transitions * rewards).sum(-1)
    lead = () if policy is None else policy.shape[:-3]
    q = np.zeros((*lead, horizon, *pay.shape))
    after = np.zeros((*lead, pay.shape[0]))
    for h in range(horizon - 1, -1, -1):
        q[..., h, :, :] = pay + np.einsum("san,...n->...sa", transitions, after)
        if policy is None:
            after = q[..., h, :, :].max(-1)
        else:
            after = (policy[..., h, :, :] * q[..., h, :, :]).sum(-1)
    return q


def optimal_value(
    transitions: np.ndarray, rewards: np.ndarray, start: np.ndarray, horizon: int
) -> float:
    """Return the optimal expected return from the start distribution [S]."""
    return float(start @ backward(transitions, rewards, horizon)[0].max(-1))


def policy_value(
    transitions: np.ndarray,
    rewards: np.ndarray,
    start: np.ndarray,
    horizon: int,
    policy: np.ndarray,
) -> np.ndarray:
    """Return the expected returns [...] of policies [..., H, S, A]."""
    q = backward(transitions, rewards, horizon, policy)[..., 0, :, :]
    return np.asarray((policy[..., 0, :, :] * q).sum(-1) @ start)
