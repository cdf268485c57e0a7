"""Gaussian noise on the clipped sum of a round.

Guarantee: for one user in one slot of a round, a release is a Gaussian mechanism with multiplier z jointly
over all blocks under zero-out adjacency, z / 2 under replace-one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.releases import ReleaseEvent, joint_z
from privrl_bench.privacy.mechanisms.mechanism import Attempt, Mechanism

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.privacy.contribution import Block
    from privrl_bench.privacy.ledger import Ledger


class Gaussian(Mechanism):
    """Noise N(0, (z clip)^2) on every clipped sum; z is split over the blocks."""

    name = "gaussian"
    records: ClassVar[tuple[str, ...]] = ("gaussian",)
    clipped = True
    subsampled = True
    calibrated = True

    @classmethod
    def single(cls, release: ReleaseEvent) -> DpEvent:
        """See `Mechanism.single`."""
        from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

        return GaussianDpEvent(release.z) if release.z > 0 else NonPrivateDpEvent()

    def joint_z(self, r: int) -> float:
        """The z of replica r. Raises PrivacyError: the blocks' multipliers do not give it."""
        z, joint = self.terms.configs[r].z, joint_z(self.multipliers(r).values())
        if not math.isclose(joint, z, rel_tol=1e-9):
            raise PrivacyError(f"blocks give joint z {joint}, the configuration says {z}")
        return z  # not `joint`, which is rounded

    def release_event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.release_event`. Raises PrivacyError: the blocks' noise does not give z."""
        config = self.terms.configs[r]
        one = ReleaseEvent("gaussian", self.joint_z(r), config.adjacency)
        return self.terms.sampler.record(one, config)

    def details(self, r: int, round_index: int, ledger: Ledger) -> dict[str, Any]:
        """See `Mechanism.details`."""
        stds = self.multipliers(r)
        return {
            "users": self.terms.configs[r].users_per_round,
            "blocks": {b.name: {"clip": b.clip, "z": stds[b.name]} for b in self.terms.blocks},
        }

    def multipliers(self, r: int) -> dict[str, float]:
        """Noise multiplier of every block of replica r."""
        from privrl_bench.privacy import contribution

        return contribution.block_multipliers(self.terms.configs[r].z, self.terms.blocks)

    def unit_noise(self, block: Block) -> float:
        """Noise std of a block at multiplier 1."""
        return block.clip

    def standard_noise(self, attempt: Attempt) -> list[Tensor]:
        """One vector for each block, before it is scaled."""
        return attempt.normal([block.size for block in self.terms.blocks])

    def privatize(self, sums: dict[str, Tensor], attempt: Attempt) -> dict[str, Tensor]:
        """See `Mechanism.privatize`."""
        from privrl_bench.privacy.contribution import on_grid

        if not self.terms.configs[attempt.replica].z > 0:
            return sums
        multipliers, noised = self.multipliers(attempt.replica), dict(sums)
        drawn = self.standard_noise(attempt)
        for block, one in zip(self.terms.blocks, drawn, strict=True):
            std = multipliers[block.name] * self.unit_noise(block)
            noised[block.name] = on_grid(sums[block.name] + std * one, std)
        return noised

    def paper_epsilon(self, r: int) -> float:
        """See `Mechanism.paper_epsilon`."""
        config = self.terms.configs[r]
        return self.terms.sampler.paper_epsilon(self.release_event(r), self.terms.rounds, config)


MECHANISM = Gaussian
