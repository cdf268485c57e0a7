"""Exact values of released policies where the environment's tables are known: return and regret.

By dynamic programming over a finite horizon. Axes: H steps, S states, A actions. The tables are transitions
[S, A, S] and rewards [S, A, S], the same at every step; returns are undiscounted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import tables_of
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.models.policy import Policy


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


class Exact:
    """Expected and optimal return from the start distribution, by dynamic programming.

    Args:
        tables: a `tabular.Model`; states are observed one-hot.
        policy: with `probabilities`.
    """

    def __init__(self, tables: Any, policy: Any):
        self._tables = tables
        self._policy = policy
        self._states = np.eye(len(tables.start))
        self.best = optimal_value(*tables)

    def values(self, policy_params: Tensor, scaling: FrozenScaling) -> np.ndarray:
        """[R] expected returns of the policies `policy_params` [R, P]."""
        replicas, horizon = len(policy_params), self._tables.horizon
        raw = np.repeat(self._states[None], replicas, axis=0)
        obs = torch.from_numpy(np.asarray(scaling.obs(raw), dtype=np.float32))
        with torch.inference_mode():
            probs = self._policy.probabilities(policy_params, obs, horizon)
        t = self._tables
        return policy_value(t.transitions, t.rewards, t.start, t.horizon, probs.double().numpy())


def exact(config: EnvConfig, policy: Policy) -> Exact | None:
    """Of this environment and policy class; None: tables or action probabilities are unknown."""
    tables = tables_of(config)
    if tables is None or not hasattr(policy, "probabilities"):
        return None
    return Exact(tables, policy)
