"""Bounding what one user can contribute, in L1 or L2 norm, and rounding it to the public grid."""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.privacy.grid import L2

# Rounding the norm and then the row takes less than this leaves free: `grid.py`.
_SAFETY = 1.0 - 4e-6


def clip_rows(rows: Tensor, bound: float, unit: float, norm: int = L2) -> tuple[Tensor, Tensor]:
    """Scale every row into the ball and round it to integers; one with a non-finite number becomes zero.

    Args:
        rows: [..., P] contributions, parameter units.
        bound: radius of the ball, parameter units.
        unit: of the grid, parameter units (`grid.unit_of(bound)`).
        norm: `grid.L1` or `grid.L2`. Numbers are rounded to the nearest integer in L2, towards zero
            in L1, since P roundings to the nearest could add half a unit each.

    Returns:
        [..., P] int64 rows in units, with norm <= (1 - grid.MARGIN) bound / unit, and [...] the norms that the
        rows had, in parameter units, NaN for a row that was not finite (or whose norm is beyond double
        precision).

    Guarantee: changing one user's row to zero moves the exact sum over users by at most `bound` in this norm,
    whatever they sent (NaN, infinities and overflowing norms included). Proof, for both norms: `grid.py`, 1.
    """
    wide = rows.to(torch.float64, copy=True)
    norms = row_norms(wide, norm)
    broken = torch.isnan(norms)
    if broken.any():
        wide[broken] = 0.0
    scale = torch.clamp(bound * _SAFETY / norms.clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    # The unit is a power of two: dividing by it is exact.
    wide.mul_((scale.nan_to_num(0.0) / unit)[..., None])
    return (wide.round_() if norm == L2 else wide.trunc_()).to(torch.int64), norms


def row_norms(rows: Tensor, norm: int = L2) -> Tensor:
    """Norms [...] of rows [..., P] in double precision; NaN for a row that is not finite."""
    # The norm of finite single-precision numbers is finite in double precision.
    norms = torch.linalg.vector_norm(rows, norm, dim=-1, dtype=torch.float64)
    return torch.where(torch.isfinite(norms), norms, torch.nan)
