"""One of exactly `population` users in every round, drawn uniformly and in secret."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Draws
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.sampling.sampler import Sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.mechanisms.declarations import Declarations


class UniformSingleUser(Sampler):
    """A user is in a round with probability 1 / n; the analysis is `accounting/single_user.py`."""

    name = "uniform_single_user"
    draws = Draws.ONE
    adjacencies = ("replace_one",)
    adjacency_reason = ", as the number of users is public"
    accountants = ("pld", "rdp")
    random = True
    exact = True
    paper_accountant = "rdp"

    @classmethod
    def accepts(cls, mechanism: type[Declarations]) -> bool:
        """See `Sampler.accepts`."""
        return mechanism.subsampled

    @classmethod
    def record(cls, release: ReleaseEvent, privacy: PrivacyConfig) -> ReleaseEvent:
        """See `Sampler.record`."""
        n = int(privacy.population or 0)
        return replace(super().record(release, privacy), q=1 / n, population=n, cap=1)

    @classmethod
    def wrap(cls, event: DpEvent, release: ReleaseEvent) -> DpEvent:
        """See `Sampler.wrap`."""
        from dp_accounting import SampledWithoutReplacementDpEvent

        return SampledWithoutReplacementDpEvent(int(release.population or 1), 1, event)


SAMPLER = UniformSingleUser
