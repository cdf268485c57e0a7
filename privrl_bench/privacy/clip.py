"""Bounding what one user can contribute."""

from __future__ import annotations

import torch
from torch import Tensor

# float32 rounding of the scaled row may exceed the bound by a few ulps; this keeps it inside.
_SAFETY = 1.0 - 1e-6


def clip_rows(rows: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Scale every row into the L2 ball; a row with any non-finite number becomes zero.

    Args:
        rows: [..., P] contributions, parameter units.
        bound: radius of the ball, parameter units.

    Returns:
        [..., P] rows with float64 norm <= bound, and [...] bool: whether a row was finite.

    Guarantee: changing one user's row to zero moves the sum over users by at most `bound` in L2 norm,
    whatever she sent (NaN, infinities and overflowing norms included).
    """
    finite = torch.isfinite(rows).all(dim=-1)
    safe = torch.where(finite[..., None], rows, torch.zeros_like(rows)).double()
    norms = torch.linalg.vector_norm(safe, dim=-1, keepdim=True)
    scale = torch.clamp(bound * _SAFETY / norms.clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    return (safe * scale).to(rows.dtype), finite
