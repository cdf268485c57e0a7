"""Noise for running sums: every release is what one round adds to a sum over all rounds so far.

`tree` (Dwork et al. 2010; Chan, Shi and Song 2011): round t completes one node of a binary tree over the
rounds, whose noise joins the running sum while that of the nodes below it leaves. So the noise of a sum is
that of at most `levels` nodes, and a user's row is in at most `levels` nodes: with N(0, (z clip)^2) for each,
all releases together are one Gaussian mechanism with multiplier z / sqrt(levels). A second attempt at a round
is one more node, for everybody below it (`Gate.spent_epsilon` counts it for all). Nodes whose
noise is gone (secure noise after a restart) stay in the sum: as if a new tree had begun.

`fresh_noise_per_round`: what the public code of private UCB-VI does instead. Every round replaces the noise of the
whole sum by floor(ln t) + 1 fresh Laplace(z) draws, so an average over rounds shows the data: a caveat.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

IMITATION = (
    "fresh noise",
    "running sums get new noise every round, as in published code: their average shows the data, and "
    "the printed epsilon is that code's label, 1 / z",
)
Draw = Callable[[list[int]], list[Tensor]]


def levels(rounds: int) -> int:
    """Nodes that one round is in, and the most that a sum is made of.

    >>> [levels(n) for n in (1, 2, 3, 4, 1000)]
    [1, 2, 2, 3, 10]
    """
    return rounds.bit_length()


class RunningNoise:
    """Noise of one replica's running sums, kept while it is in the sum. `kept`: round -> its noise."""

    def __init__(self, imitated: bool):
        self._imitated = imitated
        self.kept: dict[int, list[Tensor]] = {}

    def leaving(self, round_index: int) -> list[int]:
        """Rounds whose noise leaves the sum when `round_index` joins it."""
        count = round_index + 1
        if self._imitated:
            return [round_index - 1] if round_index else []
        return [count - 2**level - 1 for level in range((count & -count).bit_length() - 1)]

    def joining(self, sizes: list[int], round_index: int, draw: Draw) -> list[Tensor]:
        """One vector for each size: what this round's noise is, from standard normals."""
        if not self._imitated:
            return draw(sizes)
        draws = math.floor(math.log(round_index + 1)) + 1
        # (a^2 + b^2 - c^2 - d^2) / 2 of four normals is a Laplace number.
        four = [x.reshape(draws, 4, -1) ** 2 for x in draw([4 * draws * size for size in sizes])]
        return [(x[:, :2].sum(1) - x[:, 2:].sum(1)).sum(0) / 2.0 for x in four]

    def change(self, round_index: int, new: list[Tensor]) -> list[Tensor]:
        """How the noise of the sum changes in this round: `new` joins, that of `leaving` goes."""
        gone = [self.kept[index] for index in self.leaving(round_index) if index in self.kept]
        return [
            x - torch.stack([g[i] for g in gone]).sum(0) if gone else x for i, x in enumerate(new)
        ]

    def keep(self, round_index: int, new: list[Tensor]) -> None:
        """The change was released."""
        for index in self.leaving(round_index):
            self.kept.pop(index, None)
        self.kept[round_index] = new
