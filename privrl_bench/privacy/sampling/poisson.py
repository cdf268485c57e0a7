"""Poisson sampling: each of `population` users joins a round independently with q = U / population.

`population` is a public bound on the number of users, neighbouring datasets both stay within it, and q and
the cap are functions of these numbers. Cohort sizes are secret, like the noise. With U = population every user
is in every round: there is no amplification (`Poisson.relation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Draws
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.sampling.sampler import Sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.mechanisms.declarations import Declarations
    from privrl_bench.privacy.noise import NoiseSource


class Poisson(Sampler):
    """Cohorts of a binomial size, cut at a public cap of six standard deviations above U."""

    name = "poisson"
    draws = Draws.SAMPLED
    adjacencies = ("add_or_remove", "zero_out")
    accountants = ("pld",)
    random = True
    independent = True
    paper_accountant = "rdp"

    @classmethod
    def accepts(cls, mechanism: type[Declarations]) -> bool:
        """See `Sampler.accepts`."""
        return mechanism.subsampled or not mechanism.private

    @classmethod
    def validate(cls, privacy: PrivacyConfig) -> None:
        """See `Sampler.validate`: the population, where it is given, holds a cohort."""
        users, population = privacy.users_per_round, privacy.population
        if population is not None and population < users:
            raise ConfigError(
                "privacy.population",
                "privacy.sampling=poisson needs the number of users, at least "
                f"privacy.users_per_round={users}, got {population}",
            )

    @classmethod
    def room(cls, privacy: PrivacyConfig) -> int:
        """The cap of a cohort."""
        room = privacy.users_per_round + 6.0 * math.sqrt(privacy.users_per_round)
        return min(math.ceil(room), int(privacy.population or 0))

    @classmethod
    def record(cls, release: ReleaseEvent, privacy: PrivacyConfig) -> ReleaseEvent:
        """See `Sampler.record`."""
        population = int(privacy.population or 0)
        q = privacy.users_per_round / population
        named = super().record(release, privacy)
        return replace(named, q=q, population=population, cap=cls.room(privacy))

    @classmethod
    def relation(cls, release: ReleaseEvent) -> str:
        """See `Sampler.relation`: with q = 1 one more user costs as much as zeroing one.

        Every user who is there is in the round. One more user adds one row of norm at most 1 clip to its sum
        and moves no other row: they are at most `population`, and the cap is `population`, so nobody is cut.
        A release is thus the Gaussian mechanism at the distance of zero_out, in either direction, and so is an
        adaptive composition. Fixed cohorts have no such analysis: whoever arrives later has another place, and
        another round.
        """
        everybody = release.q == 1.0 and release.cap == release.population is not None
        return "zero_out" if everybody else release.adjacency

    @classmethod
    def wrap(cls, event: DpEvent, release: ReleaseEvent) -> DpEvent:
        """See `Sampler.wrap`."""
        from dp_accounting import (
            GaussianDpEvent,
            PoissonSampledDpEvent,
            TruncatedSubsampledGaussianDpEvent,
        )

        capped = release.cap is not None and release.population is not None
        if not capped or not isinstance(event, GaussianDpEvent):
            return PoissonSampledDpEvent(release.q, event)
        z = event.noise_multiplier
        return TruncatedSubsampledGaussianDpEvent(release.population, release.q, release.cap, z)

    @classmethod
    def fast(cls, release: ReleaseEvent) -> ReleaseEvent:
        """See `Sampler.fast`: without the cut of large cohorts."""
        return replace(release, population=None, cap=None) if release.q < 1.0 else release

    def sizes(self, round_index: int, noises: Sequence[NoiseSource]) -> list[int]:
        """See `Sampler.sizes`."""
        population, room = int(self.privacy.population or 0), self.room(self.privacy)
        q = self.privacy.users_per_round / population
        return [min(noise.binomial(population, q, round_index), room) for noise in noises]


SAMPLER = Poisson
