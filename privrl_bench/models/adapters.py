"""Adapters: a flat vector that changes the weights of a frozen language model.

A module's own weights stay as they are; `weights` gives those that differ, by name, for
`torch.func.functional_call`. Only the last numbers of a vector are trained, the others are public, drawn once.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# GPT-2's weights that take a LoRA: `module.weight`, [in, out] (transformers' Conv1D).
TARGETS = {
    "attention": ("attn.c_attn",),
    "linear": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
}


class Adapter(Protocol):
    """What trains a language model. `size`: numbers of a vector; `trained`: how many of them, the last, do."""

    size: int
    trained: int
    names: tuple[str, ...]  # of the weights that it changes

    def init(self, generator: torch.Generator) -> Tensor:
        """[size] a vector that changes nothing."""
        ...

    def weights(self, vector: Tensor) -> dict[str, Tensor]:
        """Weights of the model under a vector [size], by name; differentiable."""
        ...


class Factor(NamedTuple):
    """One weight W [inputs, outputs] with W + scale * A B, A [inputs, rank], B [rank, outputs]."""

    name: str
    inputs: int
    outputs: int


class Lora:
    """Low-rank changes of a GPT-2's attention weights, or of all its linear layers.

    A vector is all A, then all B. B starts at zero, so nothing changes. With `train="b"` the A stay as drawn:
    the change is then linear in what is trained, and fewer numbers are noised (Sun et al. 2024).

    Args:
        model: has the weights.
        rank, alpha: r; the change is scaled by alpha / r.
        targets: attention | linear.
        train: both | b.

    Source: Hu et al. 2021, section 4.1; A is drawn as peft draws it, uniform on +- 1/sqrt(inputs).
    """

    def __init__(
        self, model: torch.nn.Module, rank: int, alpha: float, targets: str, train: str = "both"
    ):
        self._frozen = {
            name: p.detach()
            for name, p in model.named_parameters()
            if name.removesuffix(".weight").endswith(TARGETS[targets]) and name.endswith(".weight")
        }
        if not self._frozen:
            raise ValueError(f"the model has no weights called {', '.join(TARGETS[targets])}")
        self.names = tuple(self._frozen)
        self.rank, self.alpha = rank, alpha
        self.factors = [Factor(name, *w.shape) for name, w in self._frozen.items()]
        first = sum(f.inputs for f in self.factors) * rank
        second = sum(f.outputs for f in self.factors) * rank
        self.size = first + second
        self.trained = second if train == "b" else self.size

    def init(self, generator: torch.Generator) -> Tensor:
        """See `Adapter.init`."""
        first = [
            (2.0 * torch.rand(f.inputs * self.rank, generator=generator) - 1.0)
            / math.sqrt(f.inputs)
            for f in self.factors
        ]
        second = torch.zeros(sum(f.outputs for f in self.factors) * self.rank)
        return torch.cat([*first, second])

    def pairs(self, vector: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """(A [inputs, rank], B [rank, outputs]) of every weight, by its name."""
        sizes = [f.inputs * self.rank for f in self.factors]
        sizes += [f.outputs * self.rank for f in self.factors]
        pieces = vector.split(sizes)
        count = len(self.factors)
        return {
            f.name: (a.view(f.inputs, self.rank), b.view(self.rank, f.outputs))
            for f, a, b in zip(self.factors, pieces[:count], pieces[count:], strict=True)
        }

    def weights(self, vector: Tensor) -> dict[str, Tensor]:
        """See `Adapter.weights`."""
        scale = self.alpha / self.rank
        return {
            name: torch.addmm(self._frozen[name], a, b, alpha=scale)
            for name, (a, b) in self.pairs(vector).items()
        }


class AllWeights:
    """Every weight of a model; a vector is what is added to them, so that it starts at zero."""

    def __init__(self, model: torch.nn.Module):
        self._frozen = {name: p.detach() for name, p in model.named_parameters()}
        self.names = tuple(self._frozen)
        self.size = self.trained = sum(p.numel() for p in self._frozen.values())

    def init(self, generator: torch.Generator) -> Tensor:
        """See `Adapter.init`."""
        return torch.zeros(self.size)

    def weights(self, vector: Tensor) -> dict[str, Tensor]:
        """See `Adapter.weights`."""
        pieces = vector.split([p.numel() for p in self._frozen.values()])
        return {
            name: p + piece.view_as(p)
            for (name, p), piece in zip(self._frozen.items(), pieces, strict=True)
        }
