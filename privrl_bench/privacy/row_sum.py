"""Sums over users: clipped, on the integer grid, added. All that leaves a worker of a round.

Rows of mechanisms that do not clip (`Mechanism.norm`) are added in double precision instead, in one process
and in the order of the users.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.clip import clip_rows, row_norms
from privrl_bench.privacy.contribution import Block, Contribution, check_private


class RowSum:
    """The sum of the rows of some users of a round, for R replicas, and counts of them.

    Equal, to the last bit, however clipped rows are grouped and ordered.

    Args:
        blocks: the parts of a row.
        norm: in which rows are clipped and cut to the grid; None: they are not.
        replicas: R.

    Attributes:
        sums: block name -> [R, P_b], int64 in units of the grid, or float64 in parameter units.
        users: rows so far, of each replica, valid or not.
        valid, at_bound, invalid: [R] of these, that take part, whose norm was above the bound, that take part
            and are not finite.
        bypass: see `Contribution`.
        smooth: see `Contribution`.
    """

    def __init__(self, blocks: tuple[Block, ...], norm: int | None, replicas: int):
        self._blocks, self._norm, self._merged = blocks, norm, False
        dtype = torch.float64 if norm is None else torch.int64
        self.sums = {b.name: torch.zeros(replicas, b.size, dtype=dtype) for b in blocks}
        self.users = 0
        self.valid, self.at_bound, self.invalid = torch.zeros(3, replicas, dtype=torch.int64)
        self.bypass: dict[str, dict[str, Tensor]] = {}
        self.smooth: Tensor | None = None

    def add(self, contribution: Contribution) -> None:
        """Clip, cut to the grid, add; the contribution is consumed.

        Raises:
            PrivacyError: unknown blocks, wrong shapes, diagnostics under a name that may leave, a contribution
                used twice, or a second one with a bypass.
        """
        check_private(contribution.diagnostics)
        rows, valid, bypass = contribution.take()
        self._check(rows, valid)
        self._check_beside(bypass, contribution.smooth)
        at_bound, finite, found = torch.zeros_like(valid), valid.clone(), {}
        for block in self._blocks:
            x = rows.pop(block.name)
            if self._norm is not None:
                found[block.name], norms = clip_rows(x, block.clip, block.unit, self._norm)
                at_bound |= norms > block.clip * (1 - 1e-4)
            else:
                norms = row_norms(x)
                found[block.name] = x.double()
            finite &= torch.isfinite(norms)
        used = bool(finite.all())
        # One bad block voids the user's whole row, so that blocks cannot be played apart.
        more = {
            name: (x if used else torch.where(finite[..., None], x, 0)).sum(dim=1)
            for name, x in found.items()
        }
        for name, x in more.items():  # after everything that could fail
            self.sums[name] += x.cpu()
        bad, wide = valid & ~finite, at_bound & finite
        self._count(valid.shape[1], *(x.sum(1).cpu() for x in (valid, wide, bad)))
        self._beside(bypass, contribution.smooth)

    def merge(self, other: RowSum) -> None:
        """Add the sum over other users of the same round; it is consumed.

        Raises PrivacyError: it is of other blocks or replicas, was merged before, or has a second bypass.
        """
        same = (self._blocks, self._norm, len(self.valid))
        if other is self or same != (other._blocks, other._norm, len(other.valid)):
            raise PrivacyError("a sum of other blocks or replicas cannot be merged")
        if other._merged:
            raise PrivacyError("this sum was merged already; a user counts once")
        self._check_beside(other.bypass, other.smooth)
        other._merged = True
        for name, x in self.sums.items():
            x += other.sums[name]
        self._count(other.users, other.valid, other.at_bound, other.invalid)
        self._beside(other.bypass, other.smooth)

    def _count(self, users: int, valid: Tensor, at_bound: Tensor, invalid: Tensor) -> None:
        self.users += users
        self.valid += valid
        self.at_bound += at_bound
        self.invalid += invalid

    def _beside(self, bypass: dict[str, dict[str, Tensor]], smooth: Tensor | None) -> None:
        """Take what is not a row."""
        self.bypass = self.bypass or bypass
        self.smooth = self.smooth if smooth is None else smooth

    def _check_beside(self, bypass: dict[str, dict[str, Tensor]], smooth: Tensor | None) -> None:
        """Raise PrivacyError: what is not a row has come before."""
        if (bypass and self.bypass) or (smooth is not None and self.smooth is not None):
            raise PrivacyError("a bypass or a smooth bound comes once in a round")

    def _check(self, rows: dict[str, Tensor], valid: Tensor) -> None:
        """Raise PrivacyError for unknown blocks or wrong shapes."""
        if valid.dtype != torch.bool:
            raise PrivacyError(f"valid must be bool, got {valid.dtype}")
        expected = {block.name: block.size for block in self._blocks}
        got = {name: x.shape[-1] for name, x in rows.items()}
        if got != expected:
            raise PrivacyError(f"blocks {got} do not match the gate's {expected}")
        replicas = len(self.valid)
        for name, x in rows.items():
            users = x.shape[1] if x.dim() == 3 else -1
            if tuple(x.shape[:2]) != (replicas, users) or tuple(valid.shape) != (replicas, users):
                raise PrivacyError(
                    f"{name}: rows {tuple(x.shape)} and valid {tuple(valid.shape)} must be "
                    f"[{replicas}, users, P]"
                )
