"""Epsilon-greedy policies over a network of action values, for discrete actions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import EnvActions, Sampler
from privrl_bench.types import EnvSpec


class QPolicy(EnvActions):
    """Epsilon-greedy policy of a ReLU network of action values.

    Parameters are one vector (parameters of Q, epsilon), so the released vector determines the policy.
    """

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...]):
        self.net = Mlp(spec.obs_dim, tuple(hidden), spec.actions, "relu")
        self.size = self.net.size + 1
        self._actions = spec.actions

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {"hidden": list(self.net.hidden)}

    def init(self, generator: torch.Generator) -> Tensor:
        """Return [P + 1]: weights as initialised by torch's `Linear`, and epsilon 1."""
        return torch.cat([self.net.init_uniform(generator), torch.ones(1)])

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw uniform numbers [*shape, 2]: whether to explore, and the random action."""
        return torch.rand(*shape, 2, generator=generator)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        unpacked, epsilon = self.net.unpack(params[:, :-1]), params[:, -1:]

        def sample(obs: Tensor, noise: Tensor) -> Tensor:
            best = self.net.apply(unpacked, obs).argmax(-1)
            return torch.where(noise[..., 0] < epsilon, self._any(noise), best)

        return sample

    def _any(self, noise: Tensor) -> Tensor:
        return (noise[..., 1] * self._actions).long()

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the actions of largest value, [N, B]."""
        return self.net.forward(params[:, :-1], obs).argmax(-1)

    def probabilities(self, params: Tensor, obs: Tensor, horizon: int) -> Tensor:
        """Return action probabilities [N, H, B, A] at every step of an episode; obs [N, B, D]."""
        best = torch.nn.functional.one_hot(self.greedy(params, obs), self._actions)
        chance = torch.lerp(
            best.to(params), torch.tensor(1.0 / self._actions), params[:, -1:, None]
        )
        return chance.unsqueeze(1).expand(-1, horizon, -1, -1)
