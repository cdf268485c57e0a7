"""Figures that need no run: epsilon of a mechanism, rounds of a budget, RiverSwim, signs of relations."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.envs.tabular import model
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.calibrate import rounds_for
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent, epsilon_paper
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import MARKERS, PALETTE, epsilon_axis, figure, legend
from privrl_bench.reporting.table_writer import ABSENT


def draw_accounting(picture: Any, runs: Runs, path: Path) -> None:
    """Epsilon of one release against z: the paper's two bounds, and the exact values."""
    z, deltas = np.geomspace(0.1, 10.0, 200), picture.facts["deltas"]
    with figure(path, len(deltas), vector=True) as places:
        for axes, delta in zip(places, deltas, strict=True):
            printed = np.array([epsilon_paper(x, delta) for x in z])
            first = np.sqrt(2 * np.log(1.25 / delta)) / z
            relations = {"zero_out": "exact, zero-out", "replace_one": "exact, replace-one"}
            axes.loglog(z, first, "-.", c="0.45", label="first mechanism (valid below epsilon 1)")
            for part, label in ((printed >= 1, "what DPPG prints"), (printed < 1, None)):
                shown = np.where(part, printed, np.nan)
                axes.loglog(z, shown, "--", color=PALETTE[1], label=label)
            for at, (relation, name) in enumerate(relations.items()):
                exact = [
                    ledger_epsilon([ReleaseEvent("gaussian", x, relation, sampling="fixed")], delta)
                    for x in z
                ]
                drawn = {"color": PALETTE[2 * at], "marker": MARKERS[at]}
                axes.loglog(z, exact, **drawn, markevery=40, label=name)
            axes.axhline(1.0, color="gray", linewidth=0.6)
            axes.set_title(f"one release, delta = {delta:g}")
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("epsilon")
        legend(places)


def most_rounds(picture: Any, accountant: str, budget: float, z: float, q: float) -> int | None:
    """Poisson-sampled Gaussian rounds of one point; None: more than `facts.most` by PLD, which takes long."""
    most = int(picture.facts["most"]) if accountant == "pld" else 10**15
    event = ReleaseEvent("gaussian", z, "add_or_remove", q, sampling="poisson")
    found = rounds_for(budget, event, picture.facts["delta"], accountant, most)
    return None if found == most else found


def draw_rounds(picture: Any, rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Largest number of rounds within an epsilon, against z, for some q: by the paper's moments, and by PLD."""
    facts = picture.facts
    found_of = {
        (row["epsilon"], row["z"], row["accountant"], q): _rounds_in(row[f"rounds, q = {q:g}"])
        for row in rows
        for q in facts["q"]
    }
    forms = (("rdp", "--", "moments (RDP), as printed"), ("pld", "-", "PLD"))
    with figure(path, len(facts["epsilons"]), vector=True) as places:
        for axes, target in zip(places, facts["epsilons"], strict=True):
            for (at, q), (kind, dash, name) in itertools.product(enumerate(facts["q"]), forms):
                line = ((shown_epsilon(target), f"{z:g}", kind.upper(), q) for z in facts["z"])
                found = [found_of[point] for point in line]
                drawn = {"color": PALETTE[at], "marker": MARKERS[at], "linestyle": dash}
                axes.loglog(facts["z"], found, **drawn, label=f"q = {q:g}, {name}")
            axes.set_title(f"epsilon {shown_epsilon(target)}, delta {facts['delta']:g}")
            epsilon_axis(axes, facts["z"], "noise multiplier z")
            axes.set_ylabel("largest number of rounds")
        legend(places)


def _rounds_in(cell: str) -> float:
    """The number of a cell; NaN for none, and for more than the figure shows."""
    return math.nan if cell.startswith("over") else float(cell.replace(",", "")) or math.nan


def rounds_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): rounds of every q, and how many times more a smaller q has than the next larger one."""
    facts = picture.facts
    rates = sorted(facts["q"], reverse=True)
    lines = []
    for target, z, kind in itertools.product(facts["epsilons"], facts["z"], ("rdp", "pld")):
        found = [most_rounds(picture, kind, target, z, q) for q in rates]
        shown = [f"over {facts['most']:,.0f}" if one is None else f"{one:,}" for one in found]
        gains = [
            f"{small / large:.3g}" if small and large else ABSENT
            for large, small in itertools.pairwise(found)
        ]
        lines.append([shown_epsilon(target), f"{z:g}", kind.upper(), *shown, *gains])
    head = ["epsilon", "z", "accountant", *(f"rounds, q = {q:g}" for q in rates)]
    gained = [f"q = {small:g} / q = {large:g}" for large, small in itertools.pairwise(rates)]
    return [*head, *gained], lines


def draw_riverswim(picture: Any, runs: Runs, path: Path) -> None:
    """Transition probabilities of RiverSwim for both actions."""
    found = model()
    with figure(path, 2, vector=True) as places:
        for axes, action, name in zip(places, (0, 1), ("swim left", "swim right"), strict=True):
            matrix = found.transitions[:, action]
            axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
            for s, n in np.argwhere(matrix):
                dark = matrix[s, n] > 0.5
                text = f"{matrix[s, n]:g}"
                axes.text(
                    n, s, text, size=4.5, ha="center", va="center", color="w" if dark else "k"
                )
            axes.grid(False)
            names = [f"s{n + 1}" for n in range(len(matrix))]
            axes.set_xticks(range(len(matrix)), names)
            axes.set_yticks(range(len(matrix)), names)
            axes.set_xlabel("next state")
            axes.set_ylabel("state")
            pays = {"swim left": "pays 0.005 in s1", "swim right": "pays 1 in s6"}[name]
            axes.set_title(f"{name}: {pays}")


# --- signs of the relations among epsilon, delta, sigma, T and n of one of n users in a round: GPOPE, table 1
#
# Source: "Privacy Preserving Off-Policy Evaluation" (Xie, Thomas, Miklau), appendix A. By the theorem of the
# moments accountant, which its theorem 1 follows, sigma is proportional to
# sqrt(T log(1 / delta)) / (n epsilon): `THEOREM`. Here the accountants decide: one quantity grows, and another
# is found for which the guarantee is again exact, with the other three fixed.

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


def relations(grid: Mapping[str, Sequence[float]]) -> list[Relation]:
    """All ten pairs, over a grid: values of delta, sigma, T and n."""
    names = ("delta", "sigma", "T", "n")
    grids = itertools.product(*(grid[name] for name in names))
    points = [dict(zip(names, one, strict=True)) for one in grids]
    found = []
    for pair in itertools.combinations(QUANTITIES, 2):
        answer, grown = sorted(pair, key=_EASY.index)
        powers = {
            kind: tuple(power(point, grown, answer, kind) for point in points)
            for kind in ACCOUNTANTS
        }
        found.append(Relation(grown, answer, powers))
    return found


def sign_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): each pair with the signs and powers of theorem 1 and of the accountants."""
    lines = []
    for one in relations(picture.facts):
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
