"""All of exactly `population` users, in one release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Draws
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.sampling.sampler import Sampler

if TYPE_CHECKING:
    import numpy as np

    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.mechanisms.declarations import Declarations
    from privrl_bench.privacy.noise import NoiseSource


class FullBatch(Sampler):
    """No draw."""

    name = "full_batch"
    draws = Draws.ALL
    adjacencies = ("replace_one",)
    adjacency_reason = ", as the number of users is public"
    exact = True

    @classmethod
    def accepts(cls, mechanism: type[Declarations]) -> bool:
        """See `Sampler.accepts`."""
        return mechanism.one_release or not mechanism.private

    @classmethod
    def record(cls, release: ReleaseEvent, privacy: PrivacyConfig) -> ReleaseEvent:
        """See `Sampler.record`."""
        return replace(super().record(release, privacy), population=privacy.population)

    def sizes(self, round_index: int, noises: Sequence[NoiseSource]) -> list[int]:
        """All users, in every replica."""
        return [int(self.privacy.population or 0)] * len(noises)

    def members(
        self,
        round_index: int,
        users: int,
        once: bool,
        sizes: list[int],
        noises: Sequence[NoiseSource],
    ) -> list[np.ndarray]:
        """All numbers."""
        import numpy as np

        return [np.arange(size) for size in sizes]


SAMPLER = FullBatch
