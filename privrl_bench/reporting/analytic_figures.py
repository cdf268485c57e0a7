"""Figures that need no run: epsilon of a mechanism, rounds of a budget, and RiverSwim's transitions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privrl_bench.envs.riverswim import model
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.calibrate import rounds_for
from privrl_bench.privacy.accounting.releases import ReleaseEvent, epsilon_paper, ledger_epsilon
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import PALETTE, epsilon_axis, figure, legend

if TYPE_CHECKING:
    from privrl_bench.reporting.paper_figure import Picture


def draw_accounting(picture: Picture, runs: Runs, path: Path) -> None:
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
                exact = [ledger_epsilon([ReleaseEvent("gaussian", x, relation)], delta) for x in z]
                axes.loglog(z, exact, color=PALETTE[(0, 2)[at]], label=name)
            axes.axhline(1.0, color="gray", linewidth=0.6)
            axes.set_title(f"one release, delta = {delta:g}")
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("epsilon")
        legend(places)


def draw_rounds(picture: Picture, runs: Runs, path: Path) -> None:
    """Largest number of rounds within an epsilon, against z: by the paper's moments, and by PLD."""
    facts = picture.facts
    with figure(path, len(facts["epsilons"]), vector=True) as places:
        for axes, target in zip(places, facts["epsilons"], strict=True):
            kinds = (("rdp", "s--", "moments (RDP), as printed"), ("pld", "o-", "PLD"))
            for at, (kind, form, name) in enumerate(kinds):
                found = []
                for z in facts["z"]:
                    event = ReleaseEvent("gaussian", z, "add_or_remove", facts["q"])
                    found.append(rounds_for(target, event, facts["delta"], kind) or math.nan)
                axes.loglog(facts["z"], found, form, color=PALETTE[1 - at], label=name)
            axes.set_title(
                f"epsilon {shown_epsilon(target)}, delta {facts['delta']:g}, q = {facts['q']:g}"
            )
            epsilon_axis(axes, facts["z"], "noise multiplier z")
            axes.set_ylabel("largest number of rounds")
        legend(places)


def draw_riverswim(picture: Picture, runs: Runs, path: Path) -> None:
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
