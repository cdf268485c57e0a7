"""Exactly U of `population` users in every round, every set of U as likely.

Wang, Balle and Kasiviswanathan 2019, "Subsampled Renyi differential privacy and analytical moments accountant".
"""

from dataclasses import replace

from privrl_bench.config.traits import Draws
from privrl_bench.privacy.sampling.sampler import Sampler


class WithoutReplacement(Sampler):
    name = "without_replacement"
    draws = Draws.SAMPLED
    adjacencies = ("replace_one",)
    accountants = ("rdp",)
    random = True

    @classmethod
    def accepts(cls, mechanism):
        return mechanism.subsampled

    @classmethod
    def record(cls, release, privacy):
        users, n = privacy.users_per_round, privacy.population
        return replace(super().record(release, privacy), q=users / n, population=n, cap=users)

    @classmethod
    def wrap(cls, event, release):
        from dp_accounting import SampledWithoutReplacementDpEvent

        return SampledWithoutReplacementDpEvent(release.population, release.cap, event)


SAMPLER = WithoutReplacement
