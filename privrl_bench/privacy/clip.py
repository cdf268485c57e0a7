"""Bounding what one user can contribute."""

from __future__ import annotations

import torch
from torch import Tensor

# Rounding the row and later its sum with others moves it by far less than this leaves free.
_SAFETY = 1.0 - 1e-6


def clip_rows(rows: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Scale every row into the L2 ball; a row with any non-finite number becomes zero.

    Args:
        rows: [..., P] contributions, parameter units.
        bound: radius of the ball, parameter units; infinite leaves finite rows as they are.

    Returns:
        [..., P] rows in double precision with norm <= bound, and [...] the norms they had, NaN for a row
        that was not finite (or whose norm is beyond double precision).

    Guarantee: changing one user's row to zero moves the sum over users by at most `bound` in L2 norm,
    whatever they sent (NaN, infinities and overflowing norms included).
    """
    wide = rows.to(torch.float64, copy=True)
    norms = torch.linalg.vector_norm(wide, dim=-1)
    # The norm of finite single-precision numbers is finite in double precision.
    broken = ~torch.isfinite(norms)
    if broken.any():
        wide[broken] = 0.0
        norms[broken] = torch.nan
    scale = torch.clamp(bound * _SAFETY / norms.clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    return wide.mul_(scale.nan_to_num(0.0)[..., None]), norms
