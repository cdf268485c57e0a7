"""A greedy policy of action values that are linear in public features of scaled observations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.models.policy import EnvActions, Sampler
from privrl_bench.types import EnvSpec

_WAVES = 400  # random Fourier features
_CLIP = 8.0  # of scaled observations


class ActionValuePolicy(EnvActions):
    """The action of the largest value; see `Policy`. Parameters [A K]: weights of K features for each action.

    Args:
        spec: of an environment with discrete actions.
        basis: fourier (cos(w . s + b), w normal with standard deviation `frequency`, b uniform, and 1) |
            quadratic (all monomials up to degree 2).
        frequency: see `basis`.
    """

    def __init__(self, spec: EnvSpec, basis: str, frequency: float):
        self._basis, self._frequency, self._actions = basis, frequency, spec.actions
        dim = spec.obs_dim
        # NumPy guarantees the raw numbers of PCG64 across versions; torch does not guarantee its own.
        raw = np.random.PCG64(dim).random_raw(_WAVES * (dim + 1)).reshape(_WAVES, dim + 1)
        uniform = torch.from_numpy(((raw >> np.uint64(11)) + 0.5) / 2.0**53)
        self._waves = (frequency * torch.special.ndtri(uniform[:, :dim])).float().mT
        self._phase = (2 * math.pi * uniform[:, dim]).float()
        self._pairs = torch.triu_indices(dim, dim)
        count = _WAVES if basis == "fourier" else dim + self._pairs.shape[1]
        self.features = count + 1
        self.size = self._actions * self.features

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {"basis": self._basis, "frequency": self._frequency}

    def init(self, generator: torch.Generator) -> Tensor:
        """Return zeros [A K]."""
        return torch.zeros(self.size)

    def raw(self, obs: Tensor) -> Tensor:
        """Return the features [..., K] of scaled observations [..., D]."""
        s = obs.clamp(-_CLIP, _CLIP)
        one = torch.ones_like(s[..., :1])
        if self._basis == "fourier":
            return torch.cat([one, (s @ self._waves + self._phase).cos()], dim=-1)
        first, second = self._pairs
        return torch.cat([one, s, s[..., first] * s[..., second]], dim=-1)

    def values(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return action values [N, B, A] of params [N, A K] at obs [N, B, D]."""
        return self.raw(obs) @ params.unflatten(-1, (self._actions, -1)).mT

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Return zeros [*shape]: actions are not random."""
        return torch.zeros(*shape)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`: the greedy action."""
        return lambda obs, noise: self.greedy(params, obs)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the actions of largest value, [N, B]."""
        return self.values(params, obs).argmax(-1)

    def probabilities(self, params: Tensor, obs: Tensor, horizon: int) -> Tensor:
        """Return action probabilities [N, H, B, A], 0 or 1, at every step of an episode; obs [N, B, D]."""
        chosen = torch.nn.functional.one_hot(self.greedy(params, obs), self._actions)
        return chosen.to(params.dtype).unsqueeze(1).expand(-1, horizon, -1, -1)
