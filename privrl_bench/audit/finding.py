"""The result of one attack, and reports of its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from privrl_bench.audit.bounds import Bound
from privrl_bench.metrics import shown_epsilon, shown_measured

Say = Callable[[str], None]
_REPORT_EVERY = 10.0  # seconds


@dataclass
class Finding:
    """The result of one attack.

    Attributes:
        attack: its name.
        claim: epsilon that no bound may exceed; None if nothing is claimed.
        claim_of: description of what the claim covers.
        bounds: the first is the reported one.
        inside: scores with the user, in standard deviations of the claimed noise unless a note
            says otherwise.
        outside: scores without the user, in the same unit.
        mu: distance between the means of the two under the claim; None if it implies none.
        seconds: run time of the attack.
        problems: contradictions of the claim that are not bounds.
        notes: remarks for the reader.
        start: mean of `outside` under the claim.
    """

    attack: str
    claim: float | None
    claim_of: str
    bounds: list[Bound]
    inside: np.ndarray
    outside: np.ndarray
    mu: float | None = None
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start: float = 0.0

    @property
    def best(self) -> Bound:
        """The reported bound."""
        return self.bounds[0]

    def exceeded(self) -> list[Bound]:
        """Bounds above the claim."""
        if self.claim is None:
            return []
        return [b for b in self.bounds if b.epsilon > self.claim]

    def lines(self) -> list[str]:
        """The finding for a terminal."""
        claim = "none" if self.claim is None else f"epsilon <= {shown_epsilon(self.claim)}"
        lines = [f"{self.attack}  ({self.seconds:.0f} s)", f"  claim   {claim} for {self.claim_of}"]
        for bound in self.bounds:
            share = f"  {bound.epsilon / self.claim:.3f} of the claim" if self.claim else ""
            mu = "" if bound.mu is None else f"  (mu >= {bound.mu:.4g})"
            condition = f"  if {bound.assumes}" if bound.assumes else ""
            measured = shown_measured(bound.epsilon)
            lines.append(f"  {bound.form:8}epsilon >= {measured}{share}{mu}{condition}")
        lines.append(f"  scores  {len(self.inside)} with the user, {len(self.outside)} without")
        lines += [f"  note    {line}" for line in self.notes]
        return lines + [f"  PROBLEM {line}" for line in self.problems]


def reported(rounds: range, say: Say, name: str) -> Iterator[int]:
    """The rounds of an attack called `name`, with a line to `say` every ten seconds."""
    begun = told = time.perf_counter()
    for done, index in enumerate(rounds):
        now = time.perf_counter()
        if now - told > _REPORT_EVERY:
            told, left = now, (now - begun) / done * (len(rounds) - done)
            say(f"{name}: round {done} of {len(rounds)}, about {left:.0f} s left")
        yield index
