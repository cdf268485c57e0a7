"""Noise for running sums: every release is what one round adds to a sum over all rounds so far.

The binary tree (Dwork et al. 2010; Chan, Shi and Song 2011): round t completes one node of a binary tree
over the rounds, whose noise joins the running sum while that of the nodes below it leaves. So the noise of
a sum is that of at most `levels` nodes, and a user's row is in at most `levels` nodes: with
N(0, (z clip)^2) for each, all releases together are one Gaussian mechanism with multiplier
z / sqrt(levels). A second attempt at a round is one more node, for all users below it (`spent`
counts it for all). Nodes whose noise is lost (secure noise after a restart) stay in the sum, as if a new
tree had begun.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from privrl_bench.config.traits import Rows
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms.gaussian import Gaussian
from privrl_bench.privacy.mechanisms.mechanism import Attempt, Terms
from privrl_bench.privacy.mechanisms.on_grid import OnGrid

if TYPE_CHECKING:
    from torch import Tensor

    from privrl_bench.privacy.ledger import Ledger


def levels(rounds: int) -> int:
    """Nodes that one round is in, and the most that a sum is made of.

    >>> [levels(n) for n in (1, 2, 3, 4, 1000)]
    [1, 2, 2, 3, 10]
    """
    return rounds.bit_length()


class RunningNoise:
    """Noise of one replica's running sums, kept while it is in the sum. `kept`: round -> its noise."""

    def __init__(self) -> None:
        self.kept: dict[int, list[Tensor]] = {}

    def leaving(self, round_index: int) -> list[int]:
        """Rounds whose noise leaves the sum when `round_index` joins it."""
        count = round_index + 1
        return [count - 2**level - 1 for level in range((count & -count).bit_length() - 1)]

    def joining(self, sizes: list[int], stds: list[float], attempt: Attempt) -> list[Tensor]:
        """One int64 vector for each size: this round's noise, in units of the grid."""
        return attempt.integers(sizes, stds)

    def change(self, round_index: int, new: list[Tensor]) -> list[Tensor]:
        """How the noise of the sum changes in this round: `new` joins, that of `leaving` leaves."""
        import torch

        gone = [self.kept[index] for index in self.leaving(round_index) if index in self.kept]
        return [
            x - torch.stack([g[i] for g in gone]).sum(0) if gone else x for i, x in enumerate(new)
        ]

    def keep(self, round_index: int, new: list[Tensor]) -> None:
        """The change was released."""
        for index in self.leaving(round_index):
            self.kept.pop(index, None)
        self.kept[round_index] = new


class RunningSums(OnGrid):
    """Releases are what sums over all rounds change by, noise included. It does not say what they cost."""

    takes = Rows.INCREMENTS
    notion = "joint"
    running_sums = True
    running_noise: ClassVar[type[RunningNoise]] = RunningNoise

    def __init__(self, terms: Terms):
        super().__init__(terms)
        if terms.unit.participation != 1:
            raise PrivacyError("sums over rounds are analysed for units that are in one round only")
        self._sums = [self.running_noise() for _ in terms.configs]
        self._joined: tuple[tuple[int, int, int], list[Tensor]] | None = None

    def noise(self, attempt: Attempt) -> list[Tensor]:
        """The change of the running sums' noise."""
        sums = self._sums[attempt.replica]
        if attempt.source.name == "seeded":  # after a restart it can be drawn again
            for index in sums.leaving(attempt.round):
                made = attempt.ledger.attempts(index)
                if index not in sums.kept and made:  # a round without a line added no noise
                    earlier = replace(attempt, round=index, number=made - 1)
                    sums.kept[index] = self._joining(earlier)
        return sums.change(attempt.round, self._joining(attempt))

    def _joining(self, attempt: Attempt) -> list[Tensor]:
        """Noise that joins the running sums in a round."""
        key = (attempt.replica, attempt.round, attempt.number)
        if self._joined is None or self._joined[0] != key:
            sums, stds = self._sums[attempt.replica], self.grid_stds(attempt.replica)
            self._joined = (key, sums.joining(self.sizes, stds, attempt))
        return self._joined[1]

    def released(self, attempt: Attempt) -> None:
        """See `Mechanism.released`."""
        if self.terms.configs[attempt.replica].noise_multiplier > 0:
            self._sums[attempt.replica].keep(attempt.round, self._joining(attempt))


class Tree(RunningSums, Gaussian):
    """Sums over all rounds under the noise of a binary tree."""

    name = "tree"
    records: ClassVar[tuple[str, ...]] = ()  # its lines are those of the Gaussian mechanism
    subsampled = False

    @classmethod
    def sum_noise(cls, z: Any, clip: float, rounds: int) -> Any:
        """See `Noise.sum_noise`."""
        return z * clip * math.sqrt(rounds.bit_count())

    def release_noise(self, r: int) -> dict[str, float]:
        """See `Mechanism.release_noise`: of what the running sums change by; one node joins, others leave."""
        nodes = levels(self.terms.rounds)
        return {name: math.sqrt(nodes) * std for name, std in super().release_noise(r).items()}

    def event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.event`: a row is under the noise of that many nodes."""
        z = self.joint_z(r) / math.sqrt(levels(self.terms.rounds))
        return self.recorded(r, "gaussian", z)

    def spent(
        self, r: int, ledger: Ledger, participation: int | None, below: int | None
    ) -> list[Counter[ReleaseEvent]]:
        """See `Accounting.spent`: all nodes of one row, and every repeated round."""
        if not ledger.lines:
            return []
        nodes = levels(self.terms.rounds) + ledger.repeats(below)
        z = self.terms.configs[r].noise_multiplier / math.sqrt(nodes)
        return [Counter([replace(self.event(r), z=z)])]


MECHANISM = Tree
