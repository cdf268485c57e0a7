"""Gaussian noise on the clipped sum of a round, integers both (`grid.py`).

Guarantee: for one user in one slot of a round, a release is a Gaussian mechanism with multiplier z jointly
over all blocks under zero-out adjacency, z / 2 under replace-one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from privrl_bench.config.traits import Rows
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.releases import ReleaseEvent, joint_z
from privrl_bench.privacy.grid import (
    MOST_NOISE,
    MOST_NUMBERS,
    MOST_SLACK,
    REPEATS,
    SLACK,
    discrete_cost,
)
from privrl_bench.privacy.mechanisms.mechanism import Attempt, Mechanism, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.privacy.contribution import Block
    from privrl_bench.privacy.ledger import Ledger


class Gaussian(Mechanism):
    """Noise N(0, (z clip)^2) on every clipped sum; z is split over the blocks."""

    name = "gaussian"
    takes: ClassVar[Rows | None] = Rows.CLIPPED
    records: ClassVar[tuple[str, ...]] = ("gaussian",)
    own: ClassVar[tuple[str, ...]] = ("noise_cohort",)
    clipped = True
    subsampled = True
    calibrated = True

    def __init__(self, terms: Terms):
        """Raises ConfigError: more noise than 64-bit integers hold, or discrete noise without an analysis."""
        super().__init__(terms)
        numbers = sum(block.size for block in terms.blocks)
        if numbers > MOST_NUMBERS:
            raise PrivacyError(f"a row has {numbers} numbers, at most {MOST_NUMBERS}")
        for r, config in enumerate(terms.configs):
            stds = self.stds(r)
            most = (
                config.noise_multiplier * MOST_NOISE / max(stds)
                if config.noise_multiplier > 0
                else math.inf
            )
            if config.noise_multiplier > most:
                rule = f"at most {most:.4g}: sums and their noise are 64-bit integers"
                raise ConfigError("privacy.z", f"must be {rule}, got {config.z:g}")
            if self.slack(r) > MOST_SLACK:
                rule = "larger with privacy.noise=secure: so little discrete noise has no analysis here"
                raise ConfigError("privacy.z", f"must be {rule}, got {config.z:g}")

    def slack(self, r: int) -> float:
        """What discrete noise costs beyond Gaussian noise, on epsilon and relative on delta; see `grid.py`."""
        if not (self.terms.discrete and self.terms.configs[r].noise_multiplier > 0):
            return 0.0
        numbers = sum(self.sizes) * (2 * self.terms.rounds + REPEATS)
        return max(SLACK, 4.0 * discrete_cost(numbers, min(self.stds(r))))

    @classmethod
    def single(cls, release: ReleaseEvent) -> DpEvent:
        """See `Mechanism.single`."""
        from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

        return GaussianDpEvent(release.z) if release.z > 0 else NonPrivateDpEvent()

    @classmethod
    def gaussians(
        cls, counts: tuple[tuple[ReleaseEvent, int], ...]
    ) -> tuple[tuple[float, int], ...] | None:
        """See `Mechanism.gaussians`: of cohorts that were not drawn."""
        if cls is not Gaussian or any(release.q < 1.0 for release, _ in counts):
            return None
        return tuple((release.z, count) for release, count in counts)

    def joint_z(self, r: int) -> float:
        """The z of replica r. Raises PrivacyError: the blocks' multipliers do not give it."""
        z, joint = self.terms.configs[r].noise_multiplier, joint_z(self.multipliers(r).values())
        if not math.isclose(joint, z, rel_tol=1e-9):
            raise PrivacyError(f"blocks give joint z {joint}, the configuration says {z}")
        return z  # not `joint`, which is rounded

    def release_event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.release_event`. Raises PrivacyError: the blocks' noise does not give z."""
        return self.recorded(r, "gaussian", self.joint_z(r))

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

        return contribution.block_multipliers(
            self.terms.configs[r].noise_multiplier, self.terms.blocks
        )

    def unit_noise(self, block: Block) -> float:
        """Noise std of a block at multiplier 1."""
        return block.clip

    @property
    def sizes(self) -> list[int]:
        """P_b of every block."""
        return [block.size for block in self.terms.blocks]

    def stds(self, r: int) -> list[float]:
        """Noise standard deviation of every block of replica r, in units of its grid."""
        multipliers = self.multipliers(r)
        return [multipliers[b.name] * self.unit_noise(b) / b.unit for b in self.terms.blocks]

    def noise(self, attempt: Attempt) -> list[Tensor]:
        """One int64 vector for each block, in units of its grid."""
        return attempt.integers(self.sizes, self.stds(attempt.replica))

    def release_noise(self, r: int) -> dict[str, float]:
        """See `Mechanism.release_noise`."""
        multipliers = self.multipliers(r)
        return {b.name: multipliers[b.name] * self.unit_noise(b) for b in self.terms.blocks}

    def privatize(self, sums: dict[str, Tensor], attempt: Attempt) -> dict[str, Tensor]:
        """See `Mechanism.privatize`."""
        if not self.terms.configs[attempt.replica].noise_multiplier > 0:
            return sums
        drawn = zip(self.terms.blocks, self.noise(attempt), strict=True)
        return {block.name: sums[block.name] + one for block, one in drawn}

    def paper_epsilon(self, r: int) -> float:
        """See `Mechanism.paper_epsilon`."""
        config = self.terms.configs[r]
        return self.terms.sampler.paper_epsilon(self.release_event(r), self.terms.rounds, config)


MECHANISM = Gaussian
