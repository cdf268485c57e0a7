"""A softmax policy with dropout in its hidden layers while it acts in training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from privrl_bench.models.mlp import Mlp, Unpacked
from privrl_bench.models.policy import EnvActions, Sampler, gumbel
from privrl_bench.types import EnvSpec

_BITS = 8  # random bits in one number


class DropoutPolicy(EnvActions):
    """Softmax policy over discrete actions with ReLU layers and dropout before the ReLU.

    `sampler` draws a new mask at every step, `greedy` uses none; kept units are scaled by 1 / (1 - dropout).
    The noise of one step has K numbers: the actions' Gumbel noise, then the input of `keep`, which maps the
    same noise to the same masks. (Masks are not negative, so dropout before and after the ReLU are equal.)

    Args:
        spec: Of an environment with discrete actions.
        hidden: Widths of the layers.
        dropout: Probability that a unit is dropped, in [0, 1).
    """

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], dropout: float):
        hidden = tuple(hidden)
        self.net = Mlp(spec.obs_dim, hidden, spec.actions, "relu")
        self.size = self.net.size
        self._actions, self._hidden = spec.actions, hidden
        self._dropout = dropout
        words = torch.arange(2**_BITS).unsqueeze(-1)
        self._coins = 2.0 * (words >> torch.arange(_BITS) & 1)  # [words, bits]: mask of each word

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return {"hidden": list(self._hidden), "dropout": self._dropout}

    def init(self, generator: torch.Generator) -> Tensor:
        """Return [P]: normal weights of variance 2 / (in + out) (Glorot and Bengio 2010), zero biases."""
        pieces = []
        for fan_in, fan_out in self.net.shapes:
            weight = torch.randn(fan_in, fan_out, generator=generator)
            pieces += [weight.flatten() * math.sqrt(2.0 / (fan_in + fan_out)), torch.zeros(fan_out)]
        return torch.cat(pieces)

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw the noise [*shape, K]; a dropout of 1/2 uses one bit per unit instead of a float."""
        units = sum(self._hidden)
        noise = gumbel(generator, *shape, self._actions)
        if self._dropout == 0.0:
            return noise
        if self._dropout == 0.5:
            words = torch.randint(2**_BITS, (*shape, -(-units // _BITS)), generator=generator)
            return torch.cat([noise, words.float()], dim=-1)
        return torch.cat([noise, torch.rand(*shape, units, generator=generator)], dim=-1)

    def keep(self, noise: Tensor) -> list[Tensor]:
        """Return the masks [..., width] of the hidden layers for noise [..., K]: 0 or 1 / (1 - dropout)."""
        units, drawn = sum(self._hidden), noise[..., self._actions :]
        if self._dropout == 0.0:
            mask = noise.new_ones(*noise.shape[:-1], units)
        elif self._dropout == 0.5:
            mask = embedding(drawn.int(), self._coins).flatten(-2)[..., :units]
        else:
            mask = (drawn >= self._dropout) / (1.0 - self._dropout)
        return list(mask.split(self._hidden, dim=-1))

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`; with dropout."""
        unpacked = self.net.unpack(params)

        def sample(obs: Tensor, noise: Tensor) -> Tensor:
            logits = self._logits(unpacked, obs, self.keep(noise))
            return (logits + noise[..., : self._actions]).argmax(-1)

        return sample

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions [N, B], without dropout."""
        return self.net.forward(params, obs).argmax(-1)

    def _logits(self, unpacked: Unpacked, x: Tensor, keep: list[Tensor]) -> Tensor:
        """The outputs [N, B, A] of the network under the masks."""
        for (weight, bias), mask in zip(unpacked, [*keep, None], strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = x if mask is None else x.mul_(mask).relu_()
        return x

    def score(
        self, params: Tensor, obs: Tensor, actions: Tensor, noise: Tensor, weights: Tensor
    ) -> Tensor:
        """Compute gradients of N sums over steps of weight * log pi(action | obs, mask).

        With p = softmax: d log p[a] / d logits = onehot(a) - p.

        Args:
            params: [N, P].
            obs: [N, B, D].
            actions: [N, B].
            noise: [N, B, K] of the sampling of the actions.
            weights: [N, B].

        Returns:
            [N, P].
        """
        params = params.detach().requires_grad_()
        logits = self._logits(self.net.unpack(params), obs, self.keep(noise))
        weights, chosen = weights.unsqueeze(-1), actions.long().unsqueeze(-1)
        slope = (-weights * torch.softmax(logits.detach(), dim=-1)).scatter_add_(
            -1, chosen, weights
        )
        return torch.autograd.grad(logits, params, slope)[0]
