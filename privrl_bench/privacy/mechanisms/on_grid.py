"""Noise on the clipped sum of a round, integers both (`grid.py`): what mechanisms of any law share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from privrl_bench.config.traits import Rows
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.releases import joint_z
from privrl_bench.privacy.grid import (
    L2,
    MOST_NOISE,
    MOST_NUMBERS,
    MOST_SLACK,
    REPEATS,
    SLACK,
    discrete_cost,
)
from privrl_bench.privacy.mechanisms.mechanism import Attempt, Mechanism, Terms

if TYPE_CHECKING:
    from torch import Tensor

    from privrl_bench.privacy.contribution import Block
    from privrl_bench.privacy.ledger import Ledger


class OnGrid(Mechanism):
    """Noise of z clips on every clipped sum; z is split over the blocks. A subclass says what it costs.

    The noise is Gaussian unless a subclass draws another (`noise`).
    """

    takes: ClassVar[Rows | None] = Rows.CLIPPED
    own: ClassVar[tuple[str, ...]] = ("noise_cohort",)
    norm: ClassVar[int | None] = L2
    calibrated = True

    def __init__(self, terms: Terms):
        """Raises ConfigError: more noise than 64-bit integers hold, or discrete noise without an analysis."""
        super().__init__(terms)
        numbers = sum(block.size for block in terms.blocks)
        if numbers > MOST_NUMBERS:
            raise PrivacyError(f"a row has {numbers} numbers, at most {MOST_NUMBERS}")
        for r, config in enumerate(terms.configs):
            stds = self.grid_stds(r)
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
        return max(SLACK, 4.0 * discrete_cost(numbers, min(self.grid_stds(r))))

    def joint_z(self, r: int) -> float:
        """The z of replica r. Raises PrivacyError: the blocks' multipliers do not give it."""
        z, joint = (
            self.terms.configs[r].noise_multiplier,
            joint_z(self.multipliers(r).values(), self.norm or L2),
        )
        if not math.isclose(joint, z, rel_tol=1e-9):
            raise PrivacyError(f"blocks give joint z {joint}, the configuration says {z}")
        return z  # not `joint`, which is rounded

    def settings(self, r: int) -> dict[str, Any]:
        """See `Noise.settings`: the norm, where it is not L2."""
        return {} if self.norm == L2 else {"norm": f"L{self.norm}"}

    def details(self, r: int, round_index: int, ledger: Ledger) -> dict[str, Any]:
        """See `Mechanism.details`."""
        multipliers = self.multipliers(r)
        return {
            "users": self.terms.configs[r].users_per_round,
            "blocks": {
                b.name: {"clip": b.clip, "z": multipliers[b.name]} for b in self.terms.blocks
            },
        }

    def multipliers(self, r: int) -> dict[str, float]:
        """Noise multiplier of every block of replica r."""
        from privrl_bench.privacy import contribution

        return contribution.block_multipliers(
            self.terms.configs[r].noise_multiplier, self.terms.blocks, self.norm or L2
        )

    def unit_noise(self, block: Block) -> float:
        """Noise std of a block at multiplier 1."""
        return block.clip

    @property
    def sizes(self) -> list[int]:
        """P_b of every block."""
        return [block.size for block in self.terms.blocks]

    def stds(self, r: int) -> dict[str, float]:
        """See `Noise.stds`."""
        multipliers = self.multipliers(r)
        return {b.name: multipliers[b.name] * self.unit_noise(b) for b in self.terms.blocks}

    def grid_stds(self, r: int) -> list[float]:
        """`stds` of every block, in units of its grid."""
        stds = self.stds(r)
        return [stds[b.name] / b.unit for b in self.terms.blocks]

    def noise(self, attempt: Attempt) -> list[Tensor]:
        """One int64 vector for each block, in units of its grid."""
        return attempt.integers(self.sizes, self.grid_stds(attempt.replica))

    def privatize(self, sums: dict[str, Tensor], attempt: Attempt) -> dict[str, Tensor]:
        """See `Mechanism.privatize`."""
        if not self.terms.configs[attempt.replica].noise_multiplier > 0:
            return sums
        drawn = zip(self.terms.blocks, self.noise(attempt), strict=True)
        return {block.name: sums[block.name] + one for block, one in drawn}
