"""Signs of the relations among epsilon, delta, sigma, T and n of one of n users in a round: GPOPE, table 1.

Source: "Privacy Preserving Off-Policy Evaluation" (Xie, Thomas, Miklau), appendix A. By the theorem of the
moments accountant, which its theorem 1 follows, sigma is proportional to sqrt(T log(1 / delta)) / (n epsilon):
`THEOREM`. Here the accountants decide: one
quantity grows, and another is found for which the guarantee is again exact, with the other three fixed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import PALETTE, figure

QUANTITIES = ("epsilon", "delta", "sigma", "T", "n")
# Powers of ln epsilon = const + sum of power * ln(quantity); of delta it is that of log(1 / delta).
THEOREM = {"epsilon": -1.0, "delta": 0.5, "sigma": -1.0, "T": 0.5, "n": -1.0}
ACCOUNTANTS = ("pld", "rdp")
_STEP = 1.2  # by which the first quantity grows
_EASY = ("epsilon", "sigma", "T", "n", "delta")  # of a pair, the one that comes first is solved for
_LEAST = 1e-12  # an epsilon, for its logarithm
_WIDEST = 2.0**16  # how far a solution is looked for, relative

Point = Mapping[str, float]  # sigma in clip norms (z)


@dataclass(frozen=True)
class Relation:
    """How `answer` follows when `grown` grows and three quantities are fixed.

    Attributes:
        grown, answer: Of `QUANTITIES`.
        powers: accountant -> d ln answer / d ln grown at each point of the grid; log(1 / delta) for delta;
            NaN where there is no answer.
    """

    grown: str
    answer: str
    powers: Mapping[str, tuple[float, ...]]

    def theorem(self) -> float:
        """The power by theorem 1."""
        return -THEOREM[self.grown] / THEOREM[self.answer]

    def sign(self, powers: Sequence[float]) -> str:
        """`+` or `-` of the relation of the quantities themselves; `?` if it is not the same everywhere."""
        turned = -1.0 if "delta" in (self.grown, self.answer) else 1.0
        known = [turned * power for power in powers if not math.isnan(power)]
        signs = {"+" if power > 0 else "-" for power in known if power}
        return signs.pop() if len(signs) == 1 and all(known) else "?"

    def agrees(self) -> bool:
        """Whether every accountant has the sign of theorem 1 at every point."""
        signs = {self.sign(powers) for powers in self.powers.values()}
        return signs == {self.sign([self.theorem()])}


def cost(point: Point, accountant: str) -> float:
    """Epsilon of T rounds of one of n users at delta, neighbours differ in one user's data.

    Args:
        point: delta, sigma (noise std / clip), T and n; the last two are rounded.
        accountant: pld | rdp.
    """
    n, rounds = max(round(point["n"]), 1), max(round(point["T"]), 1)
    event = ReleaseEvent(
        "gaussian", point["sigma"], "replace_one", 1.0 / n, n, 1, sampling="uniform_single_user"
    )
    return ledger_epsilon(Counter({event: rounds}), point["delta"], accountant)


def _scaled(point: Point, name: str, factor: float) -> dict[str, float]:
    """The point with one quantity multiplied; of delta it is log(1 / delta) that is."""
    value = point[name] ** factor if name == "delta" else point[name] * factor
    return {**point, name: value}


def power(point: Point, grown: str, answer: str, accountant: str) -> float:
    """Power of the relation through a point, d ln answer / d ln grown, by a finite difference.

    Args:
        point: delta, sigma, T and n; epsilon is what they cost.
        grown: what grows; for delta it is log(1 / delta) that grows.
        answer: what follows; for delta log(1 / delta).
        accountant: pld | rdp.

    Returns:
        The power; NaN if no value of `answer` gives the guarantee back: RDP of a finite set of orders costs
        an epsilon for log(1 / delta) alone, which no T makes smaller.
    """
    from scipy.optimize import brentq

    target = cost(point, accountant)
    if grown == "epsilon":
        moved, target = dict(point), _STEP * target
    else:
        moved = _scaled(point, grown, _STEP)
    if answer == "epsilon":
        return math.log(cost(moved, accountant) / target) / math.log(_STEP)

    def excess(log_factor: float) -> float:
        found = cost(_scaled(moved, answer, math.exp(log_factor)), accountant)
        return math.log(max(found, _LEAST) / target)

    start, reach = excess(0.0), math.log(2.0)
    while reach <= math.log(_WIDEST):  # neither direction is taken for granted
        for end in (reach, -reach):
            if start * excess(end) <= 0:
                return float(brentq(excess, 0.0, end, xtol=1e-3)) / math.log(_STEP)
        reach *= 2.0
    return math.nan


@functools.cache
def relations(grid: tuple[tuple[float, ...], ...]) -> list[Relation]:
    """All ten pairs, over a grid: values of delta, sigma, T and n."""
    names = ("delta", "sigma", "T", "n")
    points = [dict(zip(names, one, strict=True)) for one in itertools.product(*grid)]
    found = []
    for pair in itertools.combinations(QUANTITIES, 2):
        answer, grown = sorted(pair, key=_EASY.index)
        powers = {
            kind: tuple(power(point, grown, answer, kind) for point in points)
            for kind in ACCOUNTANTS
        }
        found.append(Relation(grown, answer, powers))
    return found


def _of(picture: Any) -> list[Relation]:
    facts = picture.facts
    return relations(tuple(tuple(facts[name]) for name in ("delta", "sigma", "T", "n")))


def sign_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): each pair with the signs and powers of theorem 1 and of the accountants."""
    lines = []
    for one in _of(picture):
        ours = [one.powers[kind] for kind in ACCOUNTANTS]
        signs = [one.sign([one.theorem()]), *map(one.sign, ours)]
        verdict = "agrees" if one.agrees() else "differs"
        powers = [f"{one.theorem():g}", *map(powers_in_words, ours)]
        lines.append([one.grown, one.answer, *signs, verdict, *powers])
    kinds = [kind.upper() for kind in ACCOUNTANTS]
    head = ["grows", "follows", "sign, theorem 1", *(f"sign, {kind}" for kind in kinds), "verdict"]
    powers = ["power (delta: of log(1 / delta)), theorem 1", *(f"power, {kind}" for kind in kinds)]
    return [*head, *powers], lines


def powers_in_words(values: Sequence[float]) -> str:
    """Least and largest power, and how many points have none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "no answer"
    text = f"{min(known):.2f} to {max(known):.2f}"
    missing = len(values) - len(known)
    return text if not missing else f"{text} (no answer at {missing} of {len(values)})"


def draw_signs(picture: Any, rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """The matrix of signs, as the paper colours it: green for a positive relation, red for a negative one."""
    found = {
        frozenset((row["grows"], row["follows"])): {row[f"sign, {k.upper()}"] for k in ACCOUNTANTS}
        for row in rows
    }
    colours = {"+": PALETTE[2], "-": PALETTE[1], "?": "0.7"}
    with figure(path, 1, vector=True) as (axes,):
        for (y, row), (x, column) in itertools.product(enumerate(QUANTITIES), repeat=2):
            signs = found.get(frozenset((row, column)))
            if signs is None:
                continue
            sign = next(iter(signs)) if len(signs) == 1 else "?"
            place: dict[str, Any] = {"facecolor": colours[sign], "edgecolor": "w", "alpha": 0.6}
            axes.fill(
                [x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5], **place
            )
            axes.text(x, y, sign.replace("-", "\N{MINUS SIGN}"), ha="center", va="center")
        axes.grid(False)
        axes.set_xticks(range(len(QUANTITIES)), QUANTITIES)
        axes.set_yticks(range(len(QUANTITIES)), QUANTITIES)
        axes.set_xlim(-0.5, len(QUANTITIES) - 0.5)
        axes.set_ylim(len(QUANTITIES) - 0.5, -0.5)
        axes.set_aspect("equal")
        axes.set_title("signs of the relations, by PLD and by RDP")
