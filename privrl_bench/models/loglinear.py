"""Log-linear policies over discrete actions: pi(a | s) proportional to exp(theta . phi(s, a))."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privrl_bench.models.policy import EnvActions, Sampler, gumbel
from privrl_bench.types import EnvSpec


class LogLinearPolicy(EnvActions):
    """A log-linear `Policy`. Observations are clipped to norm 1, so |phi|^2 <= `bound`.

    Args:
        spec: Of an environment with discrete actions.
        features: `joined`: the observation followed by the one-hot action (d = D + A; the observation's part
            cancels in the softmax, so all states have the same distribution); `pairs`: their outer
            product (d = D A).

    Source:
        "Differentially Private Policy Gradient" (Rio, Barlier, Colin), section 4.
    """

    def __init__(self, spec: EnvSpec, features: str):
        self._dim, self._actions, self._joined = spec.obs_dim, spec.actions, features == "joined"
        self.size = self._dim + self._actions if self._joined else self._dim * self._actions
        self.bound = 2.0 if self._joined else 1.0

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {"features": "joined" if self._joined else "pairs"}

    def features(self, obs: Tensor) -> Tensor:
        """Return the features [..., A, d] of all actions at observations [..., D]."""
        obs = obs / torch.linalg.vector_norm(obs, dim=-1, keepdim=True).clamp_min(1.0)
        choice = torch.eye(self._actions, dtype=obs.dtype)
        wide = obs.unsqueeze(-2).expand(*obs.shape[:-1], self._actions, self._dim)
        if self._joined:
            return torch.cat([wide, choice.expand(*obs.shape[:-1], -1, -1)], dim=-1)
        return (choice.unsqueeze(-1) * wide.unsqueeze(-2)).flatten(-2)

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [d], normal with standard deviation 0.01."""
        return 0.01 * torch.randn(self.size, generator=generator)

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw Gumbel noise [*shape, A]."""
        return gumbel(generator, *shape, self._actions)

    def logits(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return log-probabilities [N, B, A] of params [N, d] at obs [N, B, D]."""
        scores = torch.einsum("nbad,nd->nba", self.features(obs), params)
        return torch.log_softmax(scores, dim=-1)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        return lambda obs, noise: (self.logits(params, obs) + noise).argmax(-1)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions [N, B]."""
        return self.logits(params, obs).argmax(-1)

    def probabilities(self, params: Tensor, obs: Tensor, horizon: int) -> Tensor:
        """Return action probabilities [N, H, B, A] at every step of an episode; obs [N, B, D]."""
        return self.logits(params, obs).exp().unsqueeze(1).expand(-1, horizon, -1, -1)
