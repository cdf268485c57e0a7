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
from privrl_bench.reporting.plots import figure, legend_or_note
from privrl_bench.reporting.runs import Runs

if TYPE_CHECKING:
    from privrl_bench.reporting.paper_figure import Picture


def draw_accounting(picture: Picture, runs: Runs, path: Path) -> None:
    """Epsilon of one release against z: the paper's two bounds, and the exact values."""
    z, deltas = np.geomspace(0.1, 10.0, 200), picture.facts["deltas"]
    with figure(path, len(deltas), legend_below=4, vector=True) as places:
        for axes, delta in zip(places, deltas, strict=True):
            printed = np.array([epsilon_paper(x, delta) for x in z])
            first = np.sqrt(2 * np.log(1.25 / delta)) / z
            relations = {"zero_out": "exact, zero-out", "replace_one": "exact, replace-one"}
            axes.loglog(z, first, ":", color="C7", label="first mechanism (valid below epsilon 1)")
            axes.loglog(
                z, np.where(printed >= 1, printed, np.nan), color="C1", label="what DPPG prints"
            )
            axes.loglog(z, np.where(printed < 1, printed, np.nan), color="C1")
            for at, (relation, name) in enumerate(relations.items()):
                exact = [ledger_epsilon([ReleaseEvent("gaussian", x, relation)], delta) for x in z]
                axes.loglog(z, exact, color=("C0", "C2")[at], label=name)
            axes.axhline(1.0, color="gray", linewidth=0.6)
            axes.set_title(f"one release, delta = {delta:g}")
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("epsilon")
            legend_or_note(axes)


def draw_rounds(picture: Picture, runs: Runs, path: Path) -> None:
    """Largest number of rounds within an epsilon, against z: by the paper's moments, and by PLD."""
    facts = picture.facts
    with figure(path, len(facts["epsilons"]), legend_below=2, vector=True) as places:
        for axes, target in zip(places, facts["epsilons"], strict=True):
            for at, (kind, name) in enumerate(
                (("rdp", "moments (RDP), as printed"), ("pld", "PLD"))
            ):
                found = []
                for z in facts["z"]:
                    event = ReleaseEvent("gaussian", z, "add_or_remove", facts["q"])
                    found.append(rounds_for(target, event, facts["delta"], kind) or math.nan)
                axes.loglog(facts["z"], found, "o-", color=("C1", "C0")[at], label=name)
            axes.set_title(
                f"epsilon {shown_epsilon(target)} at delta {facts['delta']:g}, q = {facts['q']:g}"
            )
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("largest number of rounds")
            legend_or_note(axes)


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
                axes.text(n, s, text, ha="center", va="center", color="w" if dark else "k")
            axes.grid(False)
            names = [f"s{n + 1}" for n in range(len(matrix))]
            axes.set_xticks(range(len(matrix)), names)
            axes.set_yticks(range(len(matrix)), names)
            axes.set_xlabel("next state")
            axes.set_ylabel("state")
            pays = {"swim left": "pays 0.005 in s1", "swim right": "pays 1 in s6"}[name]
            axes.set_title(f"{name}: {pays} (p = 0.6)")
