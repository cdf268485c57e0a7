"""Convolutional networks for images as pure functions of flat parameter vectors, and the choice of a network.

Two convolutions with ReLU, then the dense tanh layers of `Mlp`. Convolutions are matrix products of
patches, so that N networks on N batches are the same batched operations as dense layers: no user's result
depends on another's.

Sizes: 16 filters of 8 x 8 at stride 4 and 32 of 4 x 4 at stride 2 for images of at least 36 x 36 pixels
(Mnih et al. 2013, "Playing Atari with Deep Reinforcement Learning"); 16 and 32 of 3 x 3 at stride 2 with
a border of zeros for smaller ones, so that few parameters carry noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import unfold

from privrl_bench.errors import ConfigError
from privrl_bench.models.mlp import Layers, Mlp, Unpacked
from privrl_bench.types import EnvSpec, Image

_FILTERS = (16, 32)
_LARGE = 36  # pixels of a side from which the large filters fit
_PIECE = 64  # images whose patches `forward` holds at once, of each network


class _Convolution(NamedTuple):
    """Geometry of one convolution of images [channels, height, width]."""

    channels: int
    height: int
    width: int
    filters: int
    window: dict[str, Any]  # arguments of `unfold`

    @property
    def inputs(self) -> int:
        """Length of one patch."""
        return self.channels * int(self.window["kernel_size"]) ** 2

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the result."""
        size, step, border = (self.window[k] for k in ("kernel_size", "stride", "padding"))
        return tuple((n + 2 * border - size) // step + 1 for n in (self.height, self.width))

    def patches(self, x: Tensor) -> Tensor:
        """Patches [N, B * places, inputs] of images [N, B, channels, height, width]."""
        cut = unfold(x.flatten(0, 1), **self.window)  # [N * B, inputs, places]
        return cut.transpose(1, 2).reshape(x.shape[0], -1, self.inputs)

    def images(self, y: Tensor, batch: int) -> Tensor:
        """Results [N, B * places, filters] as images [N, B, filters, *out]."""
        return y.reshape(len(y), batch, -1, self.filters).transpose(2, 3).unflatten(3, self.out)


@dataclass(frozen=True)
class Cnn(Layers):
    """A network of two convolutions and dense layers, whose parameters are one vector [size].

    Layout of the vector: weight [patch, filters], then bias [filters] of each convolution, then those of the
    dense layers as in `Mlp`. A patch is ordered as in `torch.nn.functional.unfold`.

    Attributes:
        image: of the inputs, which are flat [H * W * C] in the environment's order of axes.
        hidden: widths of the dense tanh layers.
        outputs: number of outputs.
    """

    image: Image
    hidden: tuple[int, ...]
    outputs: int

    @cached_property
    def convolutions(self) -> list[_Convolution]:
        """Both convolutions."""
        large = min(self.image.height, self.image.width) >= _LARGE
        windows = ((8, 4, 0), (4, 2, 0)) if large else ((3, 2, 1), (3, 2, 1))
        channels, sizes, found = self.image.channels, (self.image.height, self.image.width), []
        for filters, (size, step, border) in zip(_FILTERS, windows, strict=True):
            window = {"kernel_size": size, "stride": step, "padding": border}
            found.append(_Convolution(channels, *sizes, filters, window))
            channels, sizes = filters, found[-1].out
        return found

    @cached_property
    def dense(self) -> Mlp:
        """The layers after the convolutions."""
        last = self.convolutions[-1]
        return Mlp(last.filters * last.out[0] * last.out[1], self.hidden, self.outputs)

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:  # type: ignore[override]
        """See `Layers`."""
        return [(c.inputs, c.filters) for c in self.convolutions] + self.dense.shapes

    def init(self, generator: torch.Generator, last_gain: float) -> Tensor:
        """Return [P]: orthogonal weights (gain sqrt 2, of the last layer `last_gain`), zero biases."""
        pieces = []
        for one in self.convolutions:
            weight = torch.empty(one.filters, one.inputs)
            torch.nn.init.orthogonal_(weight, 2**0.5, generator=generator)
            pieces += [weight.T.reshape(-1), torch.zeros(one.filters)]
        return torch.cat([*pieces, self.dense.init(generator, last_gain)])

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """See `Layers.forward`."""
        unpacked = self.unpack(params)
        return torch.cat([self.apply(unpacked, part) for part in x.split(_PIECE, dim=1)], 1)

    def by_rows(self, params: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the networks as a function [N, B, in] -> [N, B, out] without a gradient."""
        unpacked = self.unpack(params.detach())
        return lambda x: self.apply(unpacked, x)

    def _pixels(self, x: Tensor) -> Tensor:
        """Inputs [N, B, in] as scaled images [N, B, C, H, W]."""
        height, width, channels, first, scale = self.image
        if first:
            return x.unflatten(2, (channels, height, width)) * scale
        return x.unflatten(2, (height, width, channels)).movedim(4, 2) * scale

    def apply(self, unpacked: Unpacked, x: Tensor) -> Tensor:
        """Return the outputs [N, B, out] for x [N, B, in] and the result of `unpack`."""
        images = self._pixels(x)
        for one, (weight, bias) in zip(self.convolutions, unpacked, strict=False):
            result = torch.relu(torch.baddbmm(bias, one.patches(images), weight))
            images = one.images(result, x.shape[1])
        return self.dense.apply(unpacked[len(self.convolutions) :], images.flatten(2))


Network = Mlp | Cnn  # with the same methods


def make_network(spec: EnvSpec, hidden: tuple[int, ...], outputs: int, kind: str) -> Network:
    """The network that `algo.network` names, for the observations of an environment.

    Raises:
        ConfigError: `cnn` for observations that are no image.
    """
    if kind == "mlp":
        return Mlp(spec.obs_dim, hidden, outputs)
    if spec.image is None:
        raise ConfigError(
            "algo.network",
            "cnn needs observations that are one image, a uint8 Box [H, W, C] or [C, H, W]; those of "
            f"{spec.name} are {spec.observations or 'no image'}; use algo.network=mlp, or choose the image "
            "of a Dict with env.obs_parts=[<name>]",
        )
    return Cnn(spec.image, hidden, outputs)
