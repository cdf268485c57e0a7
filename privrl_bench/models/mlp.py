"""Multilayer perceptrons as pure functions of flat parameter vectors and inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from privrl_bench.kernels import mlp_kernel
from privrl_bench.kernels.machine import uses_kernels

# name -> activation
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "swish": torch.nn.functional.silu,
}

# name -> derivative of the activation as a function of its value
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: 1.0 - y * y,
    "relu": lambda y: (y > 0).to(y.dtype),
}


@dataclass(frozen=True)
class Mlp:
    """A network of dense layers, whose parameters are one vector [size].

    Layout of the vector: weight [in, out], then bias [out] of each layer, in order. `activation` is a key of
    `ACTIVATIONS`; `gradient` supports the keys of `SLOPES`.
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "tanh"

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Sizes (in, out) of every layer."""
        widths = (self.inputs, *self.hidden, self.outputs)
        return list(itertools.pairwise(widths))

    @cached_property
    def splits(self) -> list[int]:
        """Sizes of the weights and biases in the vector."""
        return [n for fan_in, fan_out in self.shapes for n in (fan_in * fan_out, fan_out)]

    @property
    def size(self) -> int:
        """Length P of the parameter vector."""
        return sum(self.splits)

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

    def unpack(self, params: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views of parameters [N, P]: weight [N, in, out] and bias [N, 1, out] of every layer."""
        pieces = params.split(self.splits, dim=-1)
        return [
            (pieces[2 * i].view(-1, *shape), pieces[2 * i + 1].unsqueeze(1))
            for i, shape in enumerate(self.shapes)
        ]

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """Apply N networks to N batches.

        Args:
            params: [N, P].
            x: [N, B, in].

        Returns:
            [N, B, out].
        """
        return self.layers(self.unpack(params), x)[-1]

    def by_rows(self, params: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the networks as a function [N, B, in] -> [N, B, out] without a gradient.

        On the CPU in compiled code, equal to `forward` up to rounding: B is small while policies act, and
        calls of tensor operations take longer than their arithmetic.

        Args:
            params: [N, P].
        """
        if self.activation != "tanh" or not uses_kernels(params, params.device.type):
            unpacked = self.unpack(params)
            return lambda x: self.layers(unpacked, x)[-1]
        weights = np.ascontiguousarray(params.detach().numpy())
        widths = np.array([self.inputs, *self.hidden, self.outputs])

        def outputs(x: Tensor) -> Tensor:
            y = x.new_empty(*x.shape[:-1], self.outputs)
            mlp_kernel.forward_rows(weights, widths, x.contiguous().numpy(), y.numpy())
            return y

        return outputs

    @torch.no_grad()
    def values(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the only outputs [R, U, T] of networks [R, P] for obs [R, U, T, D], without a gradient."""
        return self.forward(params, obs.flatten(1, 2)).reshape(obs.shape[:-1])

    def layers(self, unpacked: list[tuple[Tensor, Tensor]], x: Tensor) -> list[Tensor]:
        """Return the input and the outputs of all layers, [N, B, width] each."""
        found = [x]
        bend, last = ACTIVATIONS[self.activation], len(unpacked) - 1
        for index, (weight, bias) in enumerate(unpacked):
            x = torch.baddbmm(bias, x, weight)
            if index < last:
                x = bend(x)
            found.append(x)
        return found

    def gradient(
        self, unpacked: list[tuple[Tensor, Tensor]], layers: list[Tensor], grad: Tensor
    ) -> Tensor:
        """Back-propagate without autograd, which takes 0.6 of its time on small networks.

        Args:
            unpacked: From `unpack`.
            layers: From `layers`.
            grad: [N, B, out] derivative of N losses with respect to the outputs.

        Returns:
            [N, P] derivative with respect to the parameters.
        """
        return self.collect(layers, self.slopes(unpacked, layers, grad))

    def slopes(
        self, unpacked: list[tuple[Tensor, Tensor]], layers: list[Tensor], grad: Tensor
    ) -> list[Tensor]:
        """Compute per-sample derivatives with respect to the pre-activations of all layers.

        Args:
            unpacked: From `unpack`.
            layers: From `layers`.
            grad: As in `gradient`.

        Returns:
            [N, B, out] for every layer.

        Raises:
            ValueError: The activation is not in `SLOPES`.
        """
        if self.activation not in SLOPES:
            raise ValueError(f"no derivative for the activation {self.activation}")
        slope = SLOPES[self.activation]
        found = [grad]
        for index in range(len(unpacked) - 1, 0, -1):
            grad = torch.bmm(grad, unpacked[index][0].transpose(1, 2)) * slope(layers[index])
            found.append(grad)
        return found[::-1]

    def collect(self, layers: list[Tensor], slopes: list[Tensor]) -> Tensor:
        """Return the sum [N, P] of all samples' gradients, from the results of `layers` and `slopes`."""
        result = slopes[0].new_empty(slopes[0].shape[0], self.size)
        for index, (weight, bias) in enumerate(self.unpack(result)):
            weight.copy_(torch.bmm(layers[index].transpose(1, 2), slopes[index]))
            bias.copy_(slopes[index].sum(1, keepdim=True))
        return result

    def sample_norms(self, layers: list[Tensor], slopes: list[Tensor]) -> Tensor:
        """Return the L2 norms [N, B] of per-sample gradients without forming them.

        A layer's gradient is the outer product of (input, 1) and slope, whose squared norm is
        (|input|^2 + 1) |slope|^2.
        """
        squares = [
            ((x * x).sum(-1) + 1.0) * (d * d).sum(-1)
            for x, d in zip(layers[:-1], slopes, strict=True)
        ]
        return torch.stack(squares).sum(0).sqrt()

    def clipped_sum(self, layers: list[Tensor], slopes: list[Tensor], bound: float) -> Tensor:
        """Return [N, P] as `collect`, with every sample's gradient clipped to L2 norm `bound`."""
        norms = self.sample_norms(layers, slopes)
        scale = torch.clamp(bound / norms.clamp_min(torch.finfo(norms.dtype).tiny), max=1.0)
        return self.collect(layers, [d * scale.unsqueeze(-1) for d in slopes])
