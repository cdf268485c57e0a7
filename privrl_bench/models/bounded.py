"""Policies with tanh-squashed actions in [-1, 1], for off-policy algorithms.

For bounded action boxes only; [-1, 1] is mapped to the environment's box. N parameter vectors, B
observations of each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import Bounds, Sampler
from privrl_bench.types import EnvSpec

_LEAST, _MOST = -5.0, 2.0  # bounds of the log standard deviation


class _Bounded:
    """Action box and exploration noise of both policies."""

    net: Mlp
    size: int

    def __init__(self, spec: EnvSpec):
        assert spec.action_low is not None
        assert spec.action_high is not None
        self._actions = spec.actions
        self._centre = ((spec.action_high + spec.action_low) / 2).astype(np.float32)
        self._half = ((spec.action_high - spec.action_low) / 2).astype(np.float32)

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [P]; actions are near the centre of the box (last gain 0.01)."""
        return self.net.init(generator, last_gain=0.01)

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw standard normals [*shape, A]."""
        return torch.randn(*shape, self._actions, generator=generator)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Clip to [-1, 1] and map to the environment's box."""
        return self.bounds().apply(actions)

    def bounds(self) -> Bounds:
        """See `Policy.bounds`."""
        one = np.ones_like(self._half)
        return Bounds(-one, one, self._centre, self._half)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Invert `to_env`; 0 for a component whose bounds are equal."""
        fixed = self._half == 0
        return np.where(fixed, 0.0, (actions - self._centre) / np.where(fixed, 1.0, self._half))


class SquashedPolicy(_Bounded):
    """Tanh of a Gaussian whose mean and log standard deviation are a network's outputs.

    Source:
        Haarnoja et al. 2018, appendix C.
    """

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...]):
        super().__init__(spec)
        self.net = Mlp(spec.obs_dim, tuple(hidden), 2 * spec.actions, "relu")
        self.size = self.net.size

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {"hidden": list(self.net.hidden)}

    def _heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = outputs.chunk(2, dim=-1)
        return mean, _LEAST + 0.5 * (_MOST - _LEAST) * (torch.tanh(spread) + 1.0)

    def sample(self, params: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [N, B, A] in [-1, 1] and their log densities [N, B]; differentiable."""
        mean, log_std = self._heads(self.net.forward(params, obs))
        free = torch.addcmul(mean, log_std.exp(), noise)
        normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
        # log(1 - tanh^2 x) without cancellation
        squeeze = 2.0 * (math.log(2.0) - free - softplus(-2.0 * free))
        return torch.tanh(free), (normal - squeeze).sum(-1)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        unpacked = self.net.unpack(params)

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            mean, log_std = self._heads(self.net.apply(unpacked, obs))
            return torch.tanh(torch.addcmul(mean, log_std.exp(), noise))

        return act

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the tanh of the means, [N, B, A]."""
        return torch.tanh(self._heads(self.net.forward(params, obs))[0])


class DeterministicPolicy(_Bounded):
    """Tanh of a network's outputs; `sampler` adds Gaussian noise of standard deviation `exploration`."""

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], exploration: float):
        super().__init__(spec)
        self.net = Mlp(spec.obs_dim, tuple(hidden), spec.actions, "relu")
        self.size = self.net.size
        self._exploration = exploration

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {"hidden": list(self.net.hidden), "exploration": self._exploration}

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        unpacked = self.net.unpack(params)

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            mean = torch.tanh(self.net.apply(unpacked, obs))
            return mean.add(noise, alpha=self._exploration).clamp(-1.0, 1.0)

        return act

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return actions without noise, [N, B, A]."""
        return torch.tanh(self.net.forward(params, obs))
