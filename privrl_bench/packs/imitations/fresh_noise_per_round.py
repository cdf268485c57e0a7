"""What the public code of private UCB-VI does: sums over all rounds, under new Laplace noise every round.

Every round replaces the noise of the whole sum by floor(ln t) + 1 fresh Laplace(z) draws, so an average
over rounds shows the data: a caveat, and no guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms.mechanism import Attempt
from privrl_bench.privacy.mechanisms.tree import RunningNoise, RunningSums

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.privacy.contribution import Block


class FreshNoise(RunningNoise):
    """The whole noise of a sum is replaced in every round."""

    def leaving(self, round_index: int) -> list[int]:
        """See `RunningNoise.leaving`: that of the round before."""
        return [round_index - 1] if round_index else []

    def joining(self, sizes: list[int], stds: list[float], attempt: Attempt) -> list[Tensor]:
        """See `RunningNoise.joining`."""
        import torch

        draws = math.floor(math.log(attempt.round + 1)) + 1
        # (a^2 + b^2 - c^2 - d^2) / 2 of four normals is a Laplace number.
        drawn = attempt.normal([4 * draws * size for size in sizes])
        four = [x.reshape(draws, 4, -1) ** 2 for x in drawn]
        laplace = [(x[:, :2].sum(1) - x[:, 2:].sum(1)).sum(0) / 2.0 for x in four]
        return [torch.round(std * x).to(torch.int64) for std, x in zip(stds, laplace, strict=True)]


class FreshNoisePerRound(RunningSums):
    """Sums over all rounds with new noise in every round. Leaks."""

    name = "fresh_noise_per_round"
    records = ("label",)
    imitation = True
    calibrated = False
    in_papers = True
    running_noise = FreshNoise
    caveats: ClassVar[Mapping[str, str]] = {
        "fresh noise": "running sums get new noise every round, as in published code: their average "
        "shows the data, and the printed epsilon is that code's label, 1 / z"
    }

    @classmethod
    def sum_noise(cls, z: Any, clip: float, rounds: int) -> Any:
        """See `Mechanism.sum_noise`."""
        return z * math.sqrt(math.floor(math.log(rounds)) + 1)

    @classmethod
    def single(cls, release: ReleaseEvent) -> DpEvent:
        """See `Mechanism.single`: the label of the published code."""
        from dp_accounting import NonPrivateDpEvent

        from privrl_bench.privacy.accounting.accountants import StatedDpEvent

        return StatedDpEvent(1.0 / release.z) if release.z > 0 else NonPrivateDpEvent()

    def release_noise(self, r: int) -> dict[str, float]:
        """See `Noise.release_noise`: it depends on the round."""
        return {}

    def unit_noise(self, block: Block) -> float:
        """Laplace(z), whatever the clip."""
        return 1.0


MECHANISM = FreshNoisePerRound
