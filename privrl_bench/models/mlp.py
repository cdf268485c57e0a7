"""Multilayer perceptrons as pure functions of flat parameter vectors and inputs."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from privrl_bench.kernels import mlp_kernel
from privrl_bench.kernels.machine import uses_kernels

Unpacked = list[tuple[Tensor, Tensor]]
# name -> activation
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "swish": torch.nn.functional.silu,
}


class Layers(ABC):
    """A network whose parameters are one vector [size]: weight [in, out], then bias [out] of each layer."""

    shapes: list[tuple[int, int]]  # sizes (in, out) of every layer

    @cached_property
    def splits(self) -> list[int]:
        """Sizes of the weights and biases in the vector."""
        return [n for fan_in, fan_out in self.shapes for n in (fan_in * fan_out, fan_out)]

    @property
    def size(self) -> int:
        """Length P of the parameter vector."""
        return sum(self.splits)

    def unpack(self, params: Tensor) -> Unpacked:
        """Return views of parameters [N, P]: weight [N, in, out] and bias [N, 1, out] of every layer."""
        pieces = params.split(self.splits, dim=-1)
        return [
            (pieces[2 * i].view(-1, *shape), pieces[2 * i + 1].unsqueeze(1))
            for i, shape in enumerate(self.shapes)
        ]

    @abstractmethod
    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """Apply N networks [N, P] to N batches [N, B, in]; returns [N, B, out]."""

    @torch.no_grad()
    def values(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the only outputs [R, U, T] of networks [R, P] for obs [R, U, T, D], without a gradient."""
        return self.forward(params, obs.flatten(1, 2)).reshape(obs.shape[:-1])


@dataclass(frozen=True)
class Mlp(Layers):
    """A network of dense layers. `activation` is a key of `ACTIVATIONS`."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "tanh"

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """See `Layers`."""
        widths = (self.inputs, *self.hidden, self.outputs)
        return list(itertools.pairwise(widths))

    def init(self, generator: torch.Generator, last_gain: float) -> Tensor:
        """Return [P]: orthogonal weights (gain sqrt 2, of the last layer `last_gain`), zero biases."""
        pieces = []
        for index, (fan_in, fan_out) in enumerate(self.shapes):
            gain = last_gain if index == len(self.shapes) - 1 else 2**0.5
            weight = torch.empty(fan_out, fan_in)
            torch.nn.init.orthogonal_(weight, gain, generator=generator)
            pieces += [weight.T.reshape(-1), torch.zeros(fan_out)]
        return torch.cat(pieces)

    def init_uniform(self, generator: torch.Generator) -> Tensor:
        """Return [P] as torch's `Linear` initialises: weights and biases uniform on +-1 / sqrt(in)."""
        pieces = []
        for fan_in, fan_out in self.shapes:
            drawn = torch.rand((fan_in + 1) * fan_out, generator=generator)
            pieces.append((2.0 * drawn - 1.0) * fan_in**-0.5)
        return torch.cat(pieces)

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """See `Layers.forward`."""
        return self.apply(self.unpack(params), x)

    def by_rows(self, params: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the networks as a function [N, B, in] -> [N, B, out] without a gradient.

        On the CPU in compiled code, equal to `forward` up to rounding: B is small while policies act, and
        calls of tensor operations take longer than their arithmetic.

        Args:
            params: [N, P].
        """
        if self.activation != "tanh" or not uses_kernels(params, params.device.type):
            unpacked = self.unpack(params)
            return lambda x: self.apply(unpacked, x)
        weights = np.ascontiguousarray(params.detach().numpy())
        widths = np.array([self.inputs, *self.hidden, self.outputs])

        def outputs(x: Tensor) -> Tensor:
            y = x.new_empty(*x.shape[:-1], self.outputs)
            mlp_kernel.forward_rows(weights, widths, x.contiguous().numpy(), y.numpy())
            return y

        return outputs

    def apply(self, unpacked: Unpacked, x: Tensor) -> Tensor:
        """Return the outputs [N, B, out] for x [N, B, in] and the result of `unpack`."""
        bend, last = ACTIVATIONS[self.activation], len(unpacked) - 1
        for index, (weight, bias) in enumerate(unpacked):
            x = torch.baddbmm(bias, x, weight)
            if index < last:
                x = bend(x)
        return x
