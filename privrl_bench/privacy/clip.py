"""Bounding what one user can contribute, and rounding it to the public grid."""

from __future__ import annotations

import torch
from torch import Tensor

# Rounding the norm and then the row takes less than this leaves free: `grid.py`.
_SAFETY = 1.0 - 4e-6


def clip_rows(rows: Tensor, bound: float, unit: float) -> tuple[Tensor, Tensor]:
    """Scale every row into the L2 ball and round it to integers; a row with a non-finite number becomes zero.

    Args:
        rows: [..., P] contributions, parameter units.
        bound: radius of the ball, parameter units.
        unit: of the grid, parameter units (`grid.unit_of(bound)`).

    Returns:
        [..., P] int64 rows in units, with norm <= (1 - grid.MARGIN) bound / unit, and [...] the norms that the
        rows had, in parameter units, NaN for a row that was not finite (or whose norm is beyond double
        precision).

    Guarantee: changing one user's row to zero moves the exact sum over users by at most `bound` in L2 norm,
    whatever they sent (NaN, infinities and overflowing norms included).
    """
    wide = rows.to(torch.float64, copy=True)
    norms = row_norms(wide)
    broken = torch.isnan(norms)
    if broken.any():
        wide[broken] = 0.0
    scale = torch.clamp(bound * _SAFETY / norms.clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    # The unit is a power of two: dividing by it is exact.
    wide.mul_((scale.nan_to_num(0.0) / unit)[..., None]).round_()
    return wide.to(torch.int64), norms


def row_norms(rows: Tensor) -> Tensor:
    """L2 norms [...] of rows [..., P] in double precision; NaN for a row that is not finite."""
    # The norm of finite single-precision numbers is finite in double precision.
    norms = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    return torch.where(torch.isfinite(norms), norms, torch.nan)
