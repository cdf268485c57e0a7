"""Rounds that the leak test compares: the first, the last planned, and late ones of schedules.

A late window begins with the first state, whose round number is moved. N is a multiple of many
periods at once, so that `round % p == p - 1` and `round % p == 0` hold for all of them in rounds N
- 1 and N.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from privrl_bench.config.schema import RunConfig

UP_TO = 100  # every period from 2 to here has a late window
FURTHER = (120, 128, 150, 200, 240, 250, 256, 300, 400, 500, 512, 1000, 1024)
_USUAL = (100, 60)  # whose divisors are the usual periods
_LONGEST = 100_000  # a setting above this is a size, not a period
_EARLY = 300  # bound of the first late rounds, where step sizes that decay are not 0 yet
_LARGEST = 2**51  # of a round number: a float64, and a thousand of it an int64, hold it exactly
WINDOW = 4  # rounds of a late window
_PLANNED = 12  # rounds of a run whose last two are compared
_AFTER = 2  # iterations after the last release that are compared
_NAMES_OF_PERIODS = re.compile(r"every|period|interval|freq|patience|window")


@dataclass(frozen=True)
class Visit:
    """Rounds that are compared. All are counted from 0.

    Attributes:
        first: the first round in which the user is replaced.
        last: the last one.
        user: the slot in these rounds.
        start: the first round that is run.
        end: the round after the last one that is run.
        planned: rounds that schedules are built for; None: those of the configuration.
        cohort: users of the first replica in round `first`; None: as drawn.
        evaluated: policies are evaluated after every round.
        alone: one run is trained, and not two together.
        one_by_one: the rows of each user are computed apart from those of others.
        others: whether the other users of the first replica have data in the user's rounds.
    """

    first: int
    user: int
    last: int
    end: int
    start: int = 0
    planned: int | None = None
    cohort: int | None = None
    evaluated: bool = False
    alone: bool = False
    one_by_one: bool = False
    others: bool = True

    @property
    def usual(self) -> bool:
        """Whether these are the first rounds of a run, as it is."""
        changed = self.alone or self.one_by_one or not self.others
        return self.planned is None and self.cohort is None and not changed and self.evaluated

    @property
    def moved(self) -> bool:
        """Whether the round number of the first state is moved."""
        return self.start > 0


def late_rounds(periods: Iterable[int], largest: int = _LARGEST) -> list[int]:
    """Few numbers of which every period divides at least one.

    Args:
        periods: integers >= 1, the most important first. Those above `largest` are left out.
        largest: bound of the numbers.

    >>> late_rounds([2, 3, 4, 50], 400)
    [300]
    >>> late_rounds([7, 2, 50, 11], 400)
    [350, 11]
    """
    found: list[int] = []
    for period in periods:
        for i, number in enumerate(found):
            if math.lcm(number, period) <= largest:
                found[i] = math.lcm(number, period)
                break
        else:
            if period <= largest:
                found.append(period)
    return found


def configured(config: RunConfig) -> tuple[list[int], list[int]]:
    """Integer settings that may be a period in rounds: those with such a name, and the others."""
    named: list[int] = []
    others: list[int] = []
    for section in (config.algo, config.env):
        for name, value in vars(section).items():
            if type(value) is int and 2 <= value <= _LONGEST:
                (named if _NAMES_OF_PERIODS.search(name) else others).append(value)
    return list(dict.fromkeys(named)), list(dict.fromkeys(others))


def _roughness(number: int) -> int:
    """The largest prime factor."""
    largest, p = 1, 2
    while number > 1:
        if number % p == 0:
            number, largest = number // p, p
        else:
            p += 1
    return largest


def visits_after(config: RunConfig, user: int, room: int) -> list[Visit]:
    """The visits after the first rounds: the last planned ones, then the late windows.

    Args:
        config: of one run.
        user: slot of the replaced user.
        room: rounds that have users, where each user comes in one round.
    """
    if config.algo.traits.one_round:
        return []
    named, others = configured(config)
    usual = sorted((*range(2, UP_TO + 1), *FURTHER, *others), key=_roughness)
    early = late_rounds((*_USUAL, *named), max(_EARLY, *named, 0))
    late = late_rounds((*named, *usual), _LARGEST)
    start = _PLANNED - 2
    last = Visit(start, user, _PLANNED - 1, _PLANNED + _AFTER, start, _PLANNED, evaluated=True)
    visits = [last]
    for n in dict.fromkeys((*early, *late)):
        start = max(n - 2, 1)
        end = start + min(WINDOW, room)
        visits.append(Visit(start, user, min(n, end - 1), end, start, max(2 * n, end)))
    return visits
