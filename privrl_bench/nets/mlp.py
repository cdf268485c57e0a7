"""Multilayer perceptrons as pure functions of (flat parameter vector, inputs)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mlp:
    """A tanh network; its parameters are one vector of `size` numbers.

    Layout of the vector: weight [in, out] then bias [out] of each layer, in order.
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """(in, out) of every layer."""
        widths = (self.inputs, *self.hidden, self.outputs)
        return list(itertools.pairwise(widths))

    @cached_property
    def splits(self) -> list[int]:
        """Sizes of the pieces of the vector."""
        return [n for fan_in, fan_out in self.shapes for n in (fan_in * fan_out, fan_out)]

    @property
    def size(self) -> int:
        """P, length of the parameter vector."""
        return sum(self.splits)

    def init(self, generator: torch.Generator, last_gain: float) -> Tensor:
        """Orthogonal weights (gain sqrt 2, the last layer `last_gain`), zero biases: [P]."""
        pieces = []
        for index, (fan_in, fan_out) in enumerate(self.shapes):
            gain = last_gain if index == len(self.shapes) - 1 else 2**0.5
            weight = torch.empty(fan_out, fan_in)
            torch.nn.init.orthogonal_(weight, gain, generator=generator)
            pieces += [weight.T.reshape(-1), torch.zeros(fan_out)]
        return torch.cat(pieces)

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """Apply N networks to N batches.

        Args:
            params: [N, P].
            x: [N, B, in].

        Returns: [N, B, out].
        """
        pieces = params.split(self.splits, dim=-1)
        last = len(self.shapes) - 1
        for index, (fan_in, fan_out) in enumerate(self.shapes):
            weight = pieces[2 * index].view(-1, fan_in, fan_out)
            bias = pieces[2 * index + 1].unsqueeze(1)
            x = torch.baddbmm(bias, x, weight)
            if index < last:
                x = torch.tanh(x)
        return x
