"""Stochastic policies as pure functions of (flat parameter vector, observations)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.nets.mlp import Mlp
from privrl_bench.types import EnvSpec

_LOG_2PI = math.log(2.0 * math.pi)


class Policy(Protocol):
    """What rollouts and algorithms need of a policy. N is any number of parameter vectors."""

    size: int

    def init(self, generator: torch.Generator) -> Tensor:
        """[P] initial parameters."""
        ...

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Random numbers for `act`, drawn ahead so that each replica has its own stream."""
        ...

    def act(self, params: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
        """Sample actions: params [N, P], obs [N, B, D], noise [N, B, ...] -> [N, B] or [N, B, A]."""
        ...

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """The most likely actions."""
        ...

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability of the actions and entropy, both [N, B]; differentiable in params."""
        ...

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions as the environment takes them."""
        ...


class CategoricalPolicy:
    """Softmax over a choice of actions."""

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...]):
        self.net = Mlp(spec.obs_dim, hidden, spec.actions)
        self.size = self.net.size
        self._actions = spec.actions

    def init(self, generator: torch.Generator) -> Tensor:
        """[P]; nearly uniform choices (last gain 0.01)."""
        return self.net.init(generator, last_gain=0.01)

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """[*shape, actions] Gumbel noise: the largest of logits + noise is a softmax sample."""
        uniform = torch.rand(*shape, self._actions, generator=generator)
        return -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))

    def act(self, params: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
        """[N, B] sampled choices."""
        return (self.net.forward(params, obs) + noise).argmax(-1)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """[N, B] most likely choices."""
        return self.net.forward(params, obs).argmax(-1)

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `Policy.log_prob`; actions [N, B]."""
        logits = torch.log_softmax(self.net.forward(params, obs), dim=-1)
        chosen = logits.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
        return chosen, -(logits.exp() * logits).sum(-1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Whole numbers as they are."""
        return actions


class GaussianPolicy:
    """Independent Gaussians with a state-independent log standard deviation.

    The Gaussian lives on [-1, 1] in every coordinate; actions are cut there and then stretched to the
    environment's box (identical to clipping on Hopper and HalfCheetah). Unbounded boxes are not cut.
    """

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...]):
        self.net = Mlp(spec.obs_dim, hidden, spec.actions)
        self.size = self.net.size + spec.actions
        self._actions = spec.actions
        assert spec.action_low is not None
        assert spec.action_high is not None
        self._bounded = np.isfinite(spec.action_low) & np.isfinite(spec.action_high)
        low = np.where(self._bounded, spec.action_low, -1.0)
        high = np.where(self._bounded, spec.action_high, 1.0)
        self._centre = ((high + low) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params.split([self.net.size, self._actions], dim=-1)

    def init(self, generator: torch.Generator) -> Tensor:
        """[P]; mean near 0 (last gain 0.01), standard deviation 1."""
        weights = self.net.init(generator, last_gain=0.01)
        return torch.cat([weights, torch.zeros(self._actions)])

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """[*shape, A] standard normals."""
        return torch.randn(*shape, self._actions, generator=generator)

    def act(self, params: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
        """[N, B, A] sampled actions, before the cut."""
        weights, log_std = self._split(params)
        return torch.addcmul(self.net.forward(weights, obs), noise, log_std.exp().unsqueeze(1))

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """[N, B, A] means."""
        return self.net.forward(self._split(params)[0], obs)

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `Policy.log_prob`; actions [N, B, A] before the cut."""
        weights, log_std = self._split(params)
        mean = self.net.forward(weights, obs)
        spread = log_std.unsqueeze(1)
        scaled = (actions - mean) * (-spread).exp()
        log_probs = -0.5 * (scaled * scaled).sum(-1) - (spread + 0.5 * _LOG_2PI).sum(-1)
        entropy = (spread + 0.5 + 0.5 * _LOG_2PI).sum(-1)
        return log_probs, entropy.expand_as(log_probs)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Cut at +-1 and stretch to the environment's box."""
        cut = np.where(self._bounded, np.clip(actions, -1.0, 1.0), actions)
        return self._centre + self._half * cut


def make_policy(spec: EnvSpec, hidden: list[int]) -> Policy:
    """The policy class that fits the action space."""
    kind = CategoricalPolicy if spec.discrete else GaussianPolicy
    return kind(spec, tuple(hidden))
