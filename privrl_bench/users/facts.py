"""What users say of themselves: sizes, room, terms of the guarantee, and words."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from privrl_bench.errors import ConfigError
from privrl_bench.privacy.guarantee import Unit


@dataclass(frozen=True)
class UserSize:
    """What one user counts.

    Attributes:
        steps: T, the largest number of steps of one user.
        round_steps: environment steps that one round counts, a public number.
    """

    steps: int
    round_steps: int

    @property
    def text(self) -> str:
        """T in words."""
        return f"{self.steps} step{'' if self.steps == 1 else 's'}"


@dataclass(frozen=True)
class People:
    """Users who are the same in other runs.

    Attributes:
        name: of the dataset that has them.
        folder: of the dataset.
        user_key: its metadata key that names a user; empty: each episode is one.
        users: digest of who they are, in their order.
        public_users: how many of them a run takes as public, the first of a fixed order.
        part: of the others, as 1/2 (`data.part`); empty: all of them.
    """

    name: str
    folder: Path
    user_key: str
    users: str
    public_users: int
    part: str = ""

    def apart_from(self, other: People) -> bool:
        """Whether no private user is in both: parts i/k and j/m of one dataset, i - j no multiple of gcd."""
        if replace(self, part="") != replace(other, part="") or not (self.part and other.part):
            return False
        (i, k), (j, m) = (map(int, one.part.split("/")) for one in (self, other))
        return (i - j) % math.gcd(k, m) > 0


@dataclass(frozen=True)
class UserTerms:
    """What the guarantee says of its users.

    Attributes:
        unit: what one user is, and how many releases their data can enter.
        bounded: `privacy.population` is public as a bound on their number.
        public: what is taken as public about them.
        notes: what is taken for granted of them.
        caveats: what lets their data past the gate of a private run, by name.
        people: who they are, if other runs may be about the same; None: they are new in every run.
    """

    unit: Unit
    bounded: bool
    public: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)
    people: People | None = None

    def noting(self, notes: Mapping[str, str]) -> Self:
        """The same with more notes."""
        return replace(self, notes={**self.notes, **notes})


@dataclass(frozen=True)
class UserWords:
    """What the plan says of its users.

    Attributes:
        size: the steps, after `8 rounds of 96 users`.
        who: who takes part: `96 of 1000 users, each used once`; empty for segments.
        full: `who` with the population where it bounds them, and in any case.
        about: where they are from; empty: nothing to say.
    """

    size: str
    who: str
    full: str
    about: str = ""


@dataclass(frozen=True)
class Room:
    """Whether there are users for the rounds of a run.

    Attributes:
        rounds: of the run.
        need: rounds -> users that they use, each of them once; None: they are drawn, or segments.
        bounds: upper bounds on the users that there are, each with the words before it, after the rounds.
        key: setting that gives the length.
        round_steps: see `UserSize`.
        limits: the rounds, which the configuration names, are all that its population has users for.
    """

    rounds: int
    need: Callable[[int], int | None]
    bounds: tuple[tuple[int, str], ...]
    key: str
    round_steps: int
    limits: bool

    @property
    def most(self) -> int:
        """As many of these rounds as there are users for, each used once."""
        if self.need(self.rounds) is None or not self.bounds:
            return self.rounds
        there = min(self.bounds)[0]
        return bisect_right(range(1, self.rounds + 1), there, key=lambda r: self.need(r) or 0)

    def fitted(self) -> int:
        """`most`; all rounds if there are too few users for one. Raises ConfigError: no number is known."""
        if self.need(self.rounds) is not None and not self.bounds:
            raise ConfigError(
                "fit_population", "needs the number of users: give privacy.population"
            )
        return self.most or self.rounds

    def check(self) -> None:
        """Raise ConfigError if a user would be used twice."""
        most = self.most
        if most == self.rounds:
            return
        there, words = min(self.bounds)
        problem = f"{self.rounds} {words} {there}"
        if most < 1:
            raise ConfigError("privacy.users_per_round", f"{problem}: not enough for one round")
        length = f"{most} round{'s' if most > 1 else ''}, total_steps={most * self.round_steps}"
        raise ConfigError(self.key, f"{problem}: at most {length}")
