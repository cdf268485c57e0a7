"""The guarantee that is printed beside every result, as an object."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from privrl_bench.errors import PrivacyError
from privrl_bench.metrics import shown_epsilon

UNREVIEWED = "unreviewed"  # a status, and the note that says why
PART_OF_SEARCH = "search"  # the caveat of a run that a search has made
SEEDED = "seeded noise"  # the note of noise that is a function of a seed
CHARGED = "budget"  # the note of a run that is charged to one
WEAK_DELTA = "weak delta"  # a caveat that is no path of data, or a note
# At this delta a user may be shown in full once in a hundred runs: no usual meaning of "private".
_MOST_DELTA = 1e-2


def weak_delta(delta: float, users: int, *, known: bool) -> tuple[bool, str] | None:
    """What a guarantee must say of a large delta: (whether it is a caveat, why); None: nothing.

    To publish each user's data with chance delta is (0, delta)-DP. With delta > 1 / users that shows
    one user on average, whatever epsilon is. It is a caveat where the number of users is a declared bound,
    and for every delta of 0.01 or more; else, where `users` is only the number that the run uses, a note.

    >>> weak_delta(1e-5, 50_000, known=True), weak_delta(0.5, 10, known=False)[0]
    (None, True)
    """
    if delta >= _MOST_DELTA:
        return True, f"privacy.delta={delta:g} is not below {_MOST_DELTA:g}: {_SHOWN}"
    if delta <= 1.0 / max(users, 1):
        return None
    whose = "privacy.population" if known else "the users of all rounds"
    return known, f"privacy.delta={delta:g} is above 1 / {users} ({whose}): {_SHOWN}"


_HOW = {
    "zero-out": "with or without one user's contribution",
    "add-or-remove": "with or without one user",
}
_ANY = "whatever one user's data are,"
_LARGE = 20.0  # epsilon above which a factor, e^20 = 4.85e8, is not written out


def meaning(epsilon: float, delta: float, adjacency: str) -> str:
    """What epsilon and delta bound, in a sentence: P(result) <= e^epsilon P'(result) + delta.

    P and P' are the probabilities of any result under two datasets that are neighbours.

    >>> meaning(1.0, 1e-5, "zero-out")
    "with or without one user's contribution no result is more than e^1 = 2.719 times as likely, plus 1e-05"
    """
    if not epsilon < math.inf:
        return "there is no bound on what is learned about a user"
    factor = f"e^{shown_epsilon(epsilon)}"
    if epsilon <= _LARGE:
        factor += f" = {shown_epsilon(math.exp(epsilon))}"
    how = _HOW.get(adjacency, _ANY)
    return f"{how} no result is more than {factor} times as likely, plus {delta:g}"


def too_large(epsilon: float) -> str:
    """A warning of an epsilon that is finite and too large to mean much; empty for others."""
    if not _LARGE < epsilon < math.inf:
        return ""
    return f"epsilon is above {_LARGE:g}: as a bound it excludes almost nothing"


_SHOWN = "publishing each user's data with this chance would satisfy it with epsilon 0"


@dataclass(frozen=True)
class Unit:
    """What one user is, and how many releases their data can enter.

    Made by `training.plan.unit_of`, tested against `users/collectors/live.py`. Which rounds a unit is in is
    fixed by the order of arrival, never by data.

    Attributes:
        text: the unit in words.
        participation: largest number of rounds one unit takes part in, >= 1; None: every round.
        draw: (B, M) where the unit is one of M and each of M updates takes B of them without replacement
            (`privacy.mechanism=per_transition` only).
    """

    text: str
    participation: int | None
    draw: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.participation is not None and self.participation < 1:
            raise PrivacyError(f"a unit is in {self.participation} rounds; at least 1 is meant")


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta), of which unit, under which adjacency, and what is outside it.

    Status: `formal` when a theorem covers everything released, given what `notes` say; `unreviewed` when the
    note of this name says that this version of an algorithm or a mechanism from outside the package has not
    passed its audits; `heuristic` when epsilon is the accountant's number but `caveats` name what it does not
    cover; `none`: there is no bound.
    """

    epsilon: float
    delta: float
    unit: str
    notion: str  # central | joint | local
    adjacency: str
    caveats: dict[str, str] = field(default_factory=dict)  # name -> why it is outside
    notes: dict[str, str] = field(default_factory=dict)  # what the number assumes

    @property
    def status(self) -> str:
        """Formal | unreviewed | heuristic | none."""
        if not self.epsilon < math.inf:  # infinite, or NaN
            return "none"
        if self.caveats:
            return "heuristic"
        return UNREVIEWED if UNREVIEWED in self.notes else "formal"

    def to_dict(self) -> dict[str, Any]:
        """The fields of `summary.json`; caveats as "name: reason" lines."""
        return {
            "status": self.status,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "notion": self.notion,
            "adjacency": self.adjacency,
            "caveats": [f"{name}: {why}" for name, why in self.caveats.items()],
            "notes": [f"{name}: {why}" for name, why in self.notes.items()],
        }

    def sentence(self) -> str:
        """The guarantee in one sentence, and the names of what it does not cover."""
        if math.isinf(self.epsilon):
            return f"not private: {meaning(self.epsilon, self.delta, self.adjacency)}"
        numbers = f"epsilon {shown_epsilon(self.epsilon)} at delta {self.delta:g}"
        bound = meaning(self.epsilon, self.delta, self.adjacency)
        plain = f"{numbers}, {self.status}: {bound}; unit: {self.unit}"
        if self.caveats:
            plain += f"; not covered: {', '.join(self.caveats)}"
        return plain
