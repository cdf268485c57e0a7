"""What goes into the gate and what comes out: blocks of a row, contributions, releases."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from privrl_bench.errors import PrivacyError
from privrl_bench.metrics import METRICS
from privrl_bench.privacy.grid import L2, unit_of


@dataclass(frozen=True)
class Block:
    """A part of a user's row with its own clip.

    Attributes:
        name: key of the block in a contribution.
        size: P_b, numbers in it.
        clip: bound of one user's block, in the mechanism's norm and parameter units.
        noise_ratio: its noise multiplier relative to the other blocks'; the joint stays z.
    """

    name: str
    size: int
    clip: float
    noise_ratio: float = 1.0

    @property
    def unit(self) -> float:
        """Of the public grid on which its rows are added (`grid.py`), parameter units."""
        return unit_of(self.clip)


def block_multipliers(z: float, blocks: tuple[Block, ...], norm: int = L2) -> dict[str, float]:
    """Split a joint multiplier over blocks so that 1/z^2 = sum of 1/z_b^2; in L1 norm 1/z = sum of 1/z_b.

    >>> two = (Block("a", 1, 1.0), Block("c", 1, 1.0))
    >>> {name: round(value, 4) for name, value in block_multipliers(1.0, two).items()}
    {'a': 1.4142, 'c': 1.4142}
    """
    total = sum(block.noise_ratio**-norm for block in blocks)
    spread = math.sqrt(total) if norm == L2 else total
    return {block.name: z * block.noise_ratio * spread for block in blocks}


def on_grid(x: Tensor, std: float) -> Tensor:
    """Round to multiples of a public power of two near std / 1024; for outputs that are not clipped rows.

    Post-processing, a thousandth of the noise. It takes away the low bits, where a float64 sum shows
    which numbers were added (Haney et al. 2022); a cast to float32 alone leaves them where sum and
    noise nearly cancel.
    """
    step = 2.0 ** math.floor(math.log2(std / 1024.0))
    return torch.round(x / step) * step


class Contribution:
    """What the users of one round send: rows per block, and declared bypasses. Used once.

    A bypass is refused unless its name is among the gate's caveats, which algorithm and environment declare
    (`training.plan.caveats_of`). What is neither in a row nor declared could reach later rounds through an
    algorithm's own tensors only: that is what `privrl audit leaks` looks for.

    Args:
        rows: block name -> [R, U, P_b].
        valid: [R, U] bool; rows of other users are zeroed.
        bypass: caveat name -> tensors that skip clip and noise.
        diagnostics: metrics of each replica that are declared as private, for the local log only.
        smooth: [R] smooth bound on the local sensitivity of all users' one row (`mechanism=smooth` only);
            private, and never logged.
    """

    def __init__(
        self,
        rows: dict[str, Tensor],
        valid: Tensor,
        bypass: dict[str, dict[str, Tensor]] | None = None,
        diagnostics: list[dict[str, float]] | None = None,
        smooth: Tensor | None = None,
    ):
        self._content: tuple[Any, ...] | None = (rows, valid, bypass or {})
        self.diagnostics = diagnostics or []
        self.smooth = smooth

    def take(self) -> tuple[dict[str, Tensor], Tensor, dict[str, dict[str, Tensor]]]:
        """Hand the content to the gate and forget it. Raises PrivacyError the second time."""
        if self._content is None:
            raise PrivacyError("this contribution was released already; a user counts once")
        content, self._content = self._content, None
        return content


def check_private(diagnostics: list[dict[str, float]]) -> None:
    """Refuse metrics of users' data under a name that may leave the machine.

    Raises:
        PrivacyError: a name is not a declared metric with visibility `private`.
    """
    for name in dict.fromkeys(name for one in diagnostics for name in one):
        metric = METRICS.get(name)
        if metric is None or metric.visibility != "private":
            what = "is not declared" if metric is None else f"is {metric.visibility}"
            raise PrivacyError(
                f"diagnostics are computed from users' data, and the metric {name!r} {what}; use a metric "
                "that metrics.py declares as private, or Algorithm.metrics for released and public data"
            )


_GATE = object()


@dataclass(frozen=True)
class Released:
    """What is public after a round: the noised mean of every block, [R, P_b]. Only the gate makes one."""

    values: dict[str, Tensor]
    bypass: dict[str, dict[str, Tensor]]  # un-noised, outside epsilon, named in the caveats
    # The gate's; not kept. Against mistakes: no Python object stops an attacker.
    key: InitVar[object]

    def __post_init__(self, key: object) -> None:
        if key is not _GATE:
            raise PrivacyError("only Gate.release may construct Released")
