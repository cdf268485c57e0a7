"""What a sampler is: who takes part in a round, and what that does to epsilon.

A sampler is a class with declarations, which rules and plans read, and an object of it in
every gate. A new one is a module in this folder with `SAMPLER = <class>`, a YAML in conf/privacy and a test
file; see tests/privacy/test_mechanism_registry.py.

Modules here import torch and dp-accounting inside methods only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privrl_bench.config.traits import Draws
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.releases import ReleaseEvent

if TYPE_CHECKING:
    import numpy as np
    from dp_accounting import DpEvent

    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.mechanisms.declarations import Declarations
    from privrl_bench.privacy.noise import NoiseSource


@dataclass(frozen=True)
class Cohort:
    """The users of a round, or of some of its slots, of each replica.

    Attributes:
        sizes: number of users. Of a random cohort it is secret.
        members: [size] their numbers, or None where users have none.
        slots: those that it covers; the users are in the first ones. None: from 0 on, as many as the
            collector has.
    """

    sizes: list[int]
    members: list[np.ndarray] | None = None
    slots: range | None = None

    def part(self, start: int, stop: int) -> Cohort:
        """The users in the slots `start` to `stop` of the round."""
        first = 0 if self.slots is None else self.slots.start
        here = slice(start - first, stop - first)
        sizes = [len(range(size)[here]) for size in self.sizes]
        members = None if self.members is None else [who[here] for who in self.members]
        return Cohort(sizes, members, range(start, stop))

    def numbers(self) -> list[np.ndarray]:
        """`members`, of a cohort that was drawn by number. Raises PrivacyError: it was not."""
        if self.members is None:
            raise PrivacyError("the users of this cohort have no numbers")
        return self.members


class Sampler:
    """Base of the samplers: cohorts of exactly U users.

    Class attributes:
        name: value of `privacy.sampling`.
        draws: how it finds the users of a round.
        adjacencies: relations under which it is analysed.
        adjacency_reason: why under no other, for the message.
        accountants: values of `privacy.accountant` that have an analysis.
        every_round: a user can be in every round; else each is used once.
        random: a secret random draw decides who is in a round.
        independent: each user joins independently of the others, so that cohort sizes are random.
        exact: `privacy.population` is the exact number of users, and public.
        paper_accountant: by which papers print an epsilon over all rounds; empty: by DPPG's formula.
        unrepeatable: what a repeated round would repeat that has no analysis; empty: nothing.
    """

    name: ClassVar[str]
    draws: ClassVar[Draws]
    adjacencies: ClassVar[tuple[str, ...]]
    adjacency_reason: ClassVar[str] = ""
    accountants: ClassVar[tuple[str, ...]] = ("pld", "rdp", "gaussian")
    every_round: ClassVar[bool] = True
    random: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    paper_accountant: ClassVar[str] = ""
    unrepeatable: ClassVar[str] = "round of drawn users"

    # -- the configuration ------------------------------------------------------------------

    @classmethod
    def accepts(cls, mechanism: type[Declarations]) -> bool:
        """Whether there is an analysis of this mechanism's releases to such cohorts. Default: none."""
        return False

    @classmethod
    def validate(cls, privacy: PrivacyConfig) -> None:
        """Reject what has no meaning for this sampling beyond its declarations. Raises: ConfigError."""

    @classmethod
    def room(cls, privacy: PrivacyConfig) -> int:
        """Users a round has room for."""
        return privacy.users_per_round

    # -- accounting -------------------------------------------------------------------------

    @classmethod
    def record(cls, release: ReleaseEvent, privacy: PrivacyConfig) -> ReleaseEvent:
        """A release to one user who is in the round -> a release to a sampled cohort, as ledgers have it.

        It names the sampler already; everything that `wrap` needs stands in what is returned.
        """
        return release

    @classmethod
    def wrap(cls, event: DpEvent, release: ReleaseEvent) -> DpEvent:
        """The event of a recorded release with q < 1, amplified by its sampling."""
        return event

    @classmethod
    def relation(cls, release: ReleaseEvent) -> str:
        """The adjacency under which a recorded release is analysed; it must cost as much as its own."""
        return release.adjacency

    @classmethod
    def fast(cls, release: ReleaseEvent) -> ReleaseEvent:
        """A release that costs almost as much, as papers account for it."""
        return release

    # -- in a gate --------------------------------------------------------------------------

    def __init__(self, privacy: PrivacyConfig, private: bool):
        """`private`: of the mechanism."""
        self.privacy, self._private = privacy, private
        self._sizes: tuple[int, list[int]] | None = None  # of one round
        # Of the last draw: (round, users, once) and who joined.
        self._members: tuple[tuple[int, int, bool], list[np.ndarray]] | None = None

    def draw(
        self,
        round_index: int,
        users: int | None,
        once: bool,
        noises: Sequence[NoiseSource],
        ended: Collection[int] = (),
    ) -> Cohort:
        """The cohort of a round: see `Gate.draw`. Drawn once; a second call gives the same."""
        if self._sizes is None or self._sizes[0] != round_index:
            self._sizes = (round_index, self.sizes(round_index, noises))
        sizes = [0 if r in ended else size for r, size in enumerate(self._sizes[1])]
        if users is None:
            return Cohort(sizes)
        if self.exact and users != self.privacy.population:
            raise PrivacyError(f"{users} users, and n = {self.privacy.population} is public")
        key = (round_index, users, once)
        if self._members is None or self._members[0] != key:
            self._members = key, self.members(round_index, users, once, sizes, noises)
        drawn = [who.copy() for who in self._members[1]]
        return Cohort([len(who) for who in drawn], drawn)

    def sizes(self, round_index: int, noises: Sequence[NoiseSource]) -> list[int]:
        """Users of each replica."""
        return [self.privacy.users_per_round] * len(noises)

    def members(
        self,
        round_index: int,
        users: int,
        once: bool,
        sizes: list[int],
        noises: Sequence[NoiseSource],
    ) -> list[np.ndarray]:
        """[size] numbers of the users of each replica. Given its size, every set is equally likely.

        Raises PrivacyError: there are more users than `population`.
        """
        population = int(self.privacy.population or 0)
        if self._private:
            if users > population:
                raise PrivacyError(f"{users} users in a population of {self.privacy.population}")
            users = population  # an unassigned number is an absent user
        return [
            noise.choose(users, min(size, users), round_index)
            for noise, size in zip(noises, sizes, strict=True)
        ]
