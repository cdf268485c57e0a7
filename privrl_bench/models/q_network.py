"""Epsilon-greedy policies over a network of action values, for a choice of actions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import Choices, Sampler, choices_of
from privrl_bench.types import EnvSpec


class QPolicy:
    """The best action by a ReLU network, or with chance epsilon any of them.

    Parameters are one vector [Q's parameters, epsilon], so that what is released and saved is all of it.
    """

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...]):
        self.net = Mlp(spec.obs_dim, hidden, spec.actions, "relu")
        self.size = self.net.size + 1
        self._actions = spec.actions

    def init(self, generator: torch.Generator) -> Tensor:
        """[P + 1]: weights as torch's `Linear` has them, and epsilon 1."""
        return torch.cat([self.net.init_uniform(generator), torch.ones(1)])

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """[*shape, 2] uniform numbers: whether to explore, and what."""
        return torch.rand(*shape, 2, generator=generator)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        unpacked, chance = self.net.unpack(params[:, :-1]), params[:, -1:]

        def sample(obs: Tensor, noise: Tensor) -> Tensor:
            best = self.net.layers(unpacked, obs)[-1].argmax(-1)
            return torch.where(noise[..., 0] < chance, self._any(noise), best)

        return sample

    def _any(self, noise: Tensor) -> Tensor:
        return (noise[..., 1] * self._actions).long()

    def choices(self, params: Tensor, users: int, noise: Tensor | None) -> Choices:
        """See `ArrayPolicy.choices`."""
        forced = None
        if noise is not None:
            forced = torch.where(noise[..., 0] < params[:, -1:], self._any(noise), -1)
        return choices_of(self.net, params[:, :-1], users, forced=forced)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """[N, B] actions of the largest value."""
        return self.net.forward(params[:, :-1], obs).argmax(-1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Whole numbers as they are."""
        return actions
