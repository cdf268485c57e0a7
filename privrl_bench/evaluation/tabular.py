"""Exact values of released policies where the environment's tables are known: return and regret."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import tables_of
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.functional.dynamic_programming import optimal_value, policy_value
from privrl_bench.models.policy import Policy


class Exact:
    """Expected and optimal return from the start distribution, by dynamic programming.

    Args:
        tables: a `riverswim.Model`; states are observed one-hot.
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
