"""Action selection as arrays, for compiled episodes."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from privrl_bench.models.mlp import KERNEL_ACTIVATIONS, Mlp


class Choices(NamedTuple):
    """Action selection of R policies with one network for U users, as arrays for compiled code.

    The action is `forced`, or the argmax of logits + noise[..., :added]. The rest of the noise determines the
    dropout masks (`models.dropout`). A first axis of length 1 is broadcast over steps.

    Attributes:
        widths: Of the layers, starting with D.
        params: [R, P] of the network.
        noise: [T, R, U, K].
        added: Number of the K entries that are added to the logits.
        dropout: Probability that a unit is dropped.
        forced: [T, R, U] actions that replace the network's, -1: none.
        activation: TANH or RELU of `kernels.mlp_kernel`.
    """

    widths: np.ndarray
    params: np.ndarray
    noise: np.ndarray
    added: int
    dropout: float
    forced: np.ndarray
    activation: int


def choices_of(
    net: Mlp,
    params: Tensor,
    users: int,
    noise: Tensor | None = None,
    added: int = 0,
    dropout: float = 0.0,
    forced: Tensor | None = None,
) -> Choices:
    """Return the `Choices` of networks with params [R, P]; by default, the network's argmax."""
    shape = (1, len(params), users)
    noise = torch.zeros(*shape, 0) if noise is None else noise
    forced = torch.full(shape, -1) if forced is None else forced
    arrays = [x.contiguous().numpy() for x in (params.detach(), noise, forced)]
    widths = np.array([net.inputs, *net.hidden, net.outputs])
    activation = KERNEL_ACTIVATIONS[net.activation]
    return Choices(widths, arrays[0], arrays[1], added, dropout, arrays[2], activation)


@runtime_checkable
class ArrayPolicy(Protocol):
    """A policy supported by compiled code."""

    def choices(self, params: Tensor, users: int, noise: Tensor | None) -> Choices:
        """Return `sampler` for params [R, P] and noise [T, R, U, ...]; without noise, `greedy`."""
        ...
