"""Figures of runs: learning curves, regret, return against epsilon, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.reporting.paper_table import epsilon_of, mean_of, status_of
from privrl_bench.reporting.plots import figure, legend_or_note, steps_axis
from privrl_bench.reporting.runs import Run, Runs

if TYPE_CHECKING:
    from privrl_bench.reporting.paper_figure import Panel, Picture


def points(picture: Picture, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): final return of each setting, and the regret where it is known."""
    lines = []
    for panel in picture.panels:
        for line in panel.lines:
            for some in (runs[setting] for setting in line.settings if runs.get(setting)):
                regrets = [run.curve("exact/regret")[1] for run in some]
                regret = [float(one[-1]) for one in regrets if len(one)]
                spread = "{:.0f} ± {:.0f}".format(*mean_ci(regret)) if len(regret) > 1 else ""
                z = {run.z for run in some}
                lines.append(
                    [
                        panel.label,
                        line.label,
                        ", ".join("-" if one is None else f"{one:g}" for one in z),
                        str(len(some)),
                        mean_of(some),
                        spread,
                        f"{np.median(regret):.0f}" if regret else "",
                        epsilon_of(some),
                        status_of(some),
                    ]
                )
    head = ["panel", "line", "z", "seeds", "return", "regret", "median regret", "epsilon", "status"]
    return head, lines


def caption(runs: Runs) -> str:
    """What the lines and bands of a figure are."""
    seeds = {len(some) for some in runs.values() if some}
    if not seeds:
        return ""
    many = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    return f"means over {many} seeds with 95 % intervals; formal lines are solid, others dashed"


def drawn_panels(
    picture: Picture, path: Path, with_legend: bool = True
) -> Iterator[tuple[Any, Panel]]:
    """Axes and panel, one after the other. The figure is saved to `path` after the last one."""
    most = max((len(panel.lines) for panel in picture.panels), default=0) if with_legend else 0
    with figure(path, max(len(picture.panels), 1), legend_below=most, vector=True) as places:
        for axes, panel in zip(places, picture.panels, strict=False):
            yield axes, panel
            axes.set_title(panel.label)
            if with_legend:
                legend_or_note(axes)


def draw_curves(
    picture: Picture,
    runs: Runs,
    path: Path,
    metric: str = "eval/return_mean",
    label: str = "return",
) -> None:
    """Mean over seeds against steps, with bands."""
    for axes, panel in drawn_panels(picture, path):
        for at, line in enumerate(panel.lines):
            found = [dict(zip(*run.curve(metric), strict=True)) for run in line.runs(runs)]
            found = [one for one in found if one]
            if not found:
                continue
            steps = sorted(set(found[0]).intersection(*found[1:]))
            pairs = np.array([mean_ci([one[step] for one in found]) for step in steps])
            name = f"{line.label} ({len(found)})"
            axes.plot(steps, pairs[:, 0], _style(line), color=_colour(at), label=name)
            if len(found) > 1:
                low, high = pairs[:, 0] - pairs[:, 1], pairs[:, 0] + pairs[:, 1]
                axes.fill_between(steps, low, high, color=_colour(at), alpha=0.12, linewidth=0)
        steps_axis(axes, label)


def draw_regret(picture: Picture, runs: Runs, path: Path) -> None:
    """Mean cumulative regret over seeds against steps."""
    draw_curves(picture, runs, path, "exact/regret", "cumulative regret")


def draw_epsilon(picture: Picture, runs: Runs, path: Path) -> None:
    """Final return against epsilon, log axis."""
    for axes, panel in drawn_panels(picture, path):
        axes.set_xscale("log")
        known: set[float] = set()
        for at, line in enumerate(panel.lines):
            groups = [list(runs[setting]) for setting in line.settings if runs.get(setting)]
            if not groups:
                continue
            some: list[tuple[float, list[Run]]] = sorted(
                ((max(run.epsilon for run in found), found) for found in groups),
                key=lambda one: one[0],
            )
            known |= {epsilon for epsilon, _ in some}
            pairs = [mean_ci([run.final_value for run in found]) for _, found in some]
            axes.errorbar(
                [epsilon for epsilon, _ in some],
                [mean for mean, _ in pairs],
                yerr=[0.0 if math.isnan(half) else half for _, half in pairs],
                fmt="o-" if line.formal else "s--",
                capsize=3,
                color=_colour(at),
                label=line.label,
            )
        if len(known) == 1:  # a log axis of one point has no width
            axes.set_xlim(min(known) / 3, max(known) * 3)
        axes.set_xlabel("epsilon of the guarantee, log scale")
        axes.set_ylabel("final return")


def draw_spent(picture: Picture, runs: Runs, path: Path) -> None:
    """Return against the epsilon spent at each evaluation: one curve for each run, log axis."""
    for axes, panel in drawn_panels(picture, path):
        axes.set_xscale("log")
        for at, line in enumerate(panel.lines):
            for nth, run in enumerate(line.runs(runs)):
                steps, returns = run.curve()
                spent = dict(zip(*run.curve("privacy/epsilon"), strict=True))
                axes.plot(
                    [spent.get(step, math.nan) for step in steps],
                    returns,
                    _style(line),
                    color=_colour(at),
                    alpha=0.7,
                    label=None if nth else line.label,
                )
        axes.set_xlabel("epsilon spent so far, log scale")
        axes.set_ylabel("return")


def _style(line: Any) -> str:
    return "-" if line.formal else "--"


def _colour(at: int) -> Any:
    from matplotlib import colormaps

    # Few lines: the standard cycle; many: the pairs of tab20.
    return f"C{at}" if at < 10 else colormaps["tab20"]((2 * at + 1) % 20)
