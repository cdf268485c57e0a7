"""Figures that need no run: epsilon of a mechanism, rounds of a budget, and RiverSwim's transitions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.envs.riverswim import model
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
            axes.loglog(
                z, first, "-.", color="0.45", label="first mechanism (valid below epsilon 1)"
            )
            for part, label in ((printed >= 1, "what DPPG prints"), (printed < 1, None)):
                shown = np.where(part, printed, np.nan)
                axes.loglog(z, shown, "--", color=PALETTE[1], label=label)
            for at, (relation, name) in enumerate(relations.items()):
                exact = [
                    ledger_epsilon([ReleaseEvent("gaussian", x, relation, sampling="fixed")], delta)
                    for x in z
                ]
                axes.loglog(z, exact, color=PALETTE[(0, 2)[at]], label=name)
            axes.axhline(1.0, color="gray", linewidth=0.6)
            axes.set_title(f"one release, delta = {delta:g}")
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("epsilon")
        legend(places)


@functools.cache
def most_rounds(budget: float, z: float, q: float, delta: float, accountant: str, most: int) -> int:
    """Largest number of Poisson-sampled Gaussian rounds within a budget, at most `most`."""
    event = ReleaseEvent("gaussian", z, "add_or_remove", q, sampling="poisson")
    return rounds_for(budget, event, delta, accountant, most)


def _most_rounds(picture: Any, accountant: str, budget: float, z: float, q: float) -> int | None:
    """Rounds of one point of a figure; None: more than `facts.most` by PLD, which takes long beyond."""
    most = int(picture.facts["most"]) if accountant == "pld" else 10**15
    found = most_rounds(budget, z, q, picture.facts["delta"], accountant, most)
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
        found = [_most_rounds(picture, kind, target, z, q) for q in rates]
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
