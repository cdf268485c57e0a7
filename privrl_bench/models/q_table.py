"""Greedy policies on tables of action values, one table per step of an episode."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.models.policy import EnvActions, Sampler
from privrl_bench.types import EnvSpec


class TablePolicy(EnvActions):
    """A `Policy` that takes the action of largest Q[h, s, a]; states are observed one-hot.

    Steps are counted from the reset, so all episodes must start together (`env.user=episode`).
    """

    by_step = True  # the sampler counts steps; `greedy` is for the first one

    def __init__(self, spec: EnvSpec):
        self.shape = (spec.max_episode_steps, spec.obs_dim, spec.actions)
        self.size = int(np.prod(self.shape))

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {}

    def init(self, generator: torch.Generator) -> Tensor:
        """Return zeros [H S A]."""
        return torch.zeros(self.size)

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Return zeros [*shape]; the policy is deterministic."""
        return torch.zeros(*shape)

    def _actions(self, params: Tensor, obs: Tensor, step: int) -> Tensor:
        table = params.reshape(-1, *self.shape)[:, min(step, self.shape[0] - 1)]
        best = table.argmax(-1)
        return best.gather(1, obs.argmax(-1))

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        steps = itertools.count()
        return lambda obs, noise: self._actions(params, obs, next(steps))

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the actions [N, B] of the first step."""
        return self._actions(params, obs, 0)

    def probabilities(self, params: Tensor, obs: Tensor, horizon: int) -> Tensor:
        """Return action probabilities [N, H, B, A] at every step of an episode; obs [N, B, D]."""
        best = params.reshape(-1, *self.shape).argmax(-1)  # [N, H, S]
        chosen = best.gather(2, obs.argmax(-1).unsqueeze(1).expand(-1, horizon, -1))
        return torch.nn.functional.one_hot(chosen, self.shape[2]).to(params.dtype)
