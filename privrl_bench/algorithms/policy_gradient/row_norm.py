"""The norm at which users' gradients are cut, learned as a block of the release.

A row is g clip / max(|g|, tau): users whose gradient is longer than tau are scaled to the clip, the others
keep their relative length, so that a user whose data say little moves the policy little. tau follows a
quantile of the users' norms: every user sends whether theirs is above tau, and their noised mean moves it.

    tau <- tau exp(share of users above tau, noised - the share that is asked for)

tau begins far too small, where every row is scaled to the clip, and grows until the share is reached. It is a
function of released values. Every row has norm at most clip whatever tau is, and a user's block is +-1/2.

Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially private learning with adaptive clipping"
(theirs moves the clip; here the clip stays, and the gradients' unit moves).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Block, Released

_KEY = "log_norm"  # state tensor [R, 1]
_BLOCK = "norm"
_FIRST = -7.0  # log of tau before the first round
_NOISE_RATIO = 5.0  # noise multiplier of the block, relative to the actor's


class Scaled:
    """Every gradient is scaled to the norm `clip`.

    Args:
        clip: L2 bound of a row.
    """

    def __init__(self, clip: float):
        self._clip = clip

    def blocks(self) -> tuple[Block, ...]:
        """Blocks of the release besides the actor's."""
        return ()

    def init(self, replicas: int) -> dict[str, Tensor]:
        """State tensors for the first round."""
        return {}

    def rows(self, tensors: Mapping[str, Tensor], gradients: Tensor) -> dict[str, Tensor]:
        """The blocks of the users' rows.

        Args:
            tensors: of the state.
            gradients: [R, U, P] in the coordinates in which they are clipped.

        Returns:
            `actor` [R, U, P] of norm at most clip, and the blocks of this class; the gradient zero stays zero.
        """
        norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
        return {"actor": gradients * (self._clip / norms.clamp_min(1e-30))}

    def server(self, tensors: Mapping[str, Tensor], released: Released) -> dict[str, Tensor]:
        """State tensors after a release."""
        return {}


class Clipped(Scaled):
    """A share of the gradients is scaled to the norm `clip`; see the module.

    Args:
        share: of the users whose gradients are longer than tau, `algo.clipped_share`.
        clip: L2 bound of a row.
    """

    def __init__(self, share: float, clip: float):
        super().__init__(clip)
        self._share = share

    def blocks(self) -> tuple[Block, ...]:
        """See `Scaled.blocks`: one number."""
        return (Block(_BLOCK, 1, 0.5, _NOISE_RATIO),)

    def init(self, replicas: int) -> dict[str, Tensor]:
        """See `Scaled.init`."""
        return {_KEY: torch.full((replicas, 1), _FIRST)}

    def rows(self, tensors: Mapping[str, Tensor], gradients: Tensor) -> dict[str, Tensor]:
        """See `Scaled.rows`."""
        norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
        least = tensors[_KEY].exp()[:, None]
        above = (norms > least).to(gradients) - 0.5
        return {"actor": gradients * (self._clip / torch.maximum(norms, least)), _BLOCK: above}

    def server(self, tensors: Mapping[str, Tensor], released: Released) -> dict[str, Tensor]:
        """Move tau by the noised share of users above it."""
        return {_KEY: tensors[_KEY] + released.values[_BLOCK] + (0.5 - self._share)}


class Displacements(Scaled):
    """Rows of local Adam, which are no longer than the clip as they are."""

    def rows(self, tensors: Mapping[str, Tensor], gradients: Tensor) -> dict[str, Tensor]:
        """See `Scaled.rows`."""
        return {"actor": gradients}


def _gradients(share: float, clip: float) -> Scaled:
    return Scaled(clip) if share == 1 else Clipped(share, clip)


def _displacements(share: float, clip: float) -> Scaled:
    if share != 1:
        raise ConfigError("algo.clipped_share", "needs algo.user_update=gradient; otherwise use 1")
    return Displacements(clip)


# `algo.user_update` -> how long its rows are, given `algo.clipped_share` and the clip
NORMS = {"adam": _displacements, "gradient": _gradients}
