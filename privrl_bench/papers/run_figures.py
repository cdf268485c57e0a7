"""Figures of runs: learning curves, regret, return against epsilon, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.papers.paper_item import Line, epsilon_of, mean_of, status_of
from privrl_bench.reporting.runs import ENVIRONMENT_STEPS, Run, Runs
from privrl_bench.reporting.style import (
    Look,
    curve,
    cut,
    dots,
    empty,
    epsilon_axis,
    figure,
    legend,
    level,
    looks_of_panels,
    returns_of,
    steps_axis,
)


@dataclass(frozen=True)
class Drawn:
    """A line with runs, its look, and its number among how many."""

    line: Line
    look: Look
    turn: tuple[int, int]


LINES = "formal lines are solid, heuristic ones dashed, those without privacy dotted"


def points(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
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
    """What the lines and intervals of a figure are."""
    seeds = {len(some) for some in runs.values() if some}
    if not seeds:
        return ""
    many = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    return f"means over {many} seeds with 95 % intervals; {LINES}"


def drawn_panels(
    picture: Any, runs: Mapping[Any, Sequence[Any]], path: Path, with_legend: bool = True
) -> Iterator[tuple[Any, list[Drawn]]]:
    """Axes, and the lines of the panel that have runs. The figure is saved to `path` after the last panel."""
    shown = [[line for line in panel.lines if line.runs(runs)] for panel in picture.panels]
    named = [[(line.label, line.mark(runs)) for line in lines] for lines in shown]
    with figure(path, max(len(picture.panels), 1), vector=True) as places:
        for axes, panel, lines, found in zip(
            places, picture.panels, shown, looks_of_panels(named), strict=False
        ):
            if lines and picture.kind != "regret":
                first = lines[0].runs(runs)[0]
                returns_of(axes, getattr(first, "env", "") or lines[0].settings[0].env)
            drawn = [
                Drawn(line, look, (at, len(lines)))
                for at, (line, look) in enumerate(zip(lines, found, strict=True))
            ]
            yield axes, drawn
            axes.set_title(panel.label)
            if not lines:
                empty(axes, "no run")
            known = [(*one.line.paper, one.look) for one in drawn if one.line.paper]
            if known:
                paper_values(axes, known)
        if with_legend:
            legend(places)


def paper_values(axes: Any, values: Sequence[tuple[float, float, Look]]) -> None:
    """A paper's (mean, half width): one as a band; several, which would hide each other, at the right."""
    label = "paper's mean and interval"
    if len(values) == 1:
        mean, half, look = values[0]
        high = cut(axes, mean + half)
        axes.axhspan(mean - half, high, color=look.colour, alpha=0.15, lw=0, label=label)
        return
    across = axes.get_yaxis_transform()  # x is a share of the panel's width
    for at, (mean, half, look) in enumerate(values):
        x = [1.03 + 0.05 * at, 1.06 + 0.05 * at]
        drawn = {"color": look.colour, "transform": across, "clip_on": False}
        axes.fill_between(x, mean - half, cut(axes, mean + half), alpha=0.3, lw=0, **drawn)
        axes.plot(x, [mean, mean], **drawn)
        axes.plot([np.mean(x)], [mean], look.marker, **drawn)
    axes.fill_between([], [], [], color="0.5", alpha=0.3, lw=0, label=label + " (right)")


def draw_curves(
    picture: Any, runs: Runs, path: Path, metric: str = "eval/return_mean", label: str = "return"
) -> None:
    """Mean over seeds against steps, with intervals at a few points. Facts `label` and `steps`: axes."""
    for axes, drawn in drawn_panels(picture, runs, path):
        steps_name = ENVIRONMENT_STEPS
        for one in drawn:
            steps_name = one.line.runs(runs)[0].steps_name
            every = [run.curve(metric) for run in one.line.runs(runs)]
            found = [dict(zip(*points, strict=True)) for points in every if len(points[0])]
            if not found:
                continue
            steps = sorted(set(found[0]).intersection(*found[1:]))
            mean, half = np.array([mean_ci([run[step] for run in found]) for step in steps]).T
            curve(axes, one.look, one.line.label, steps, mean, (mean - half, mean + half), one.turn)
        if metric == "exact/regret":
            axes.set_ylim(bottom=0)
        facts = picture.facts
        steps_axis(axes, facts.get("label", label), facts.get("steps", steps_name))


def draw_regret(picture: Any, runs: Runs, path: Path) -> None:
    """Mean cumulative regret over seeds against steps."""
    draw_curves(picture, runs, path, "exact/regret", "cumulative regret")


def draw_points(axes: Any, one: Drawn, groups: list[tuple[float, list[Run]]]) -> None:
    """Mean final returns with 95 % intervals of (x, runs)."""
    if groups:
        x = [value for value, _ in groups]
        mean, half = np.array([mean_ci([r.final_value for r in some]) for _, some in groups]).T
        if not np.isfinite(x).all():  # no epsilon bounds it
            level(axes, one.look, one.line.label, mean[0])
            return
        dots(axes, one.look, one.line.label, x, mean, (mean - half, mean + half), one.turn)


def draw_epsilon(picture: Any, runs: Runs, path: Path) -> None:
    """Final return against epsilon, log axis."""
    for axes, drawn in drawn_panels(picture, runs, path):
        axes.set_xscale("log")
        known: set[float] = set()
        for one in drawn:
            groups = [list(runs[setting]) for setting in one.line.settings if runs.get(setting)]
            some = [(max(run.epsilon for run in found), found) for found in groups]
            draw_points(axes, one, sorted(some, key=lambda pair: pair[0]))
            known |= {epsilon for epsilon, _ in some}
        epsilon_axis(axes, [one for one in known if 0 < one < math.inf])
        axes.set_ylabel("final return")


def draw_spent(picture: Any, runs: Runs, path: Path) -> None:
    """Return against the epsilon spent at each evaluation: one curve for each run, log axis."""
    for axes, drawn in drawn_panels(picture, runs, path):
        known: set[float] = set()
        for one in drawn:
            for nth, run in enumerate(one.line.runs(runs)):
                steps, returns = run.curve()
                spent = dict(zip(*run.curve("privacy/epsilon"), strict=True))
                x = [spent.get(step, math.nan) for step in steps]
                known |= {value for value in x if 0 < value < math.inf}
                axes.plot(
                    x,
                    returns,
                    one.look.dash,
                    color=one.look.colour,
                    linewidth=0.7,
                    label=None if nth else one.line.label,
                )
        epsilon_axis(axes, known, "epsilon spent")
        axes.set_ylabel("return")


def _of_key(line: Line, key: str, runs: Runs) -> list[tuple[float, list[Run]]]:
    """(value of the key, finished runs) of every point of a line, in the order of values."""
    found = []
    for setting in line.settings:
        words = dict(word.split("=", 1) for word in setting.words)
        if runs.get(setting):
            found.append((float(words[key]), list(runs[setting])))
    return sorted(found, key=lambda one: one[0])


def swept_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): final return for each value."""
    key, lines = picture.facts["key"], []
    for panel in picture.panels:
        for line in panel.lines:
            for value, some in _of_key(line, key, runs):
                own = [f"{value:g}", str(len(some)), mean_of(some), epsilon_of(some)]
                lines.append([panel.label, line.label, *own, status_of(some)])
    return ["panel", "line", key, "seeds", "return", "epsilon", "status"], lines


def draw_swept(picture: Any, runs: Runs, path: Path) -> None:
    """Mean final return against the value of the key `facts["key"]`, with 95 % intervals."""
    key = picture.facts["key"]
    for axes, drawn in drawn_panels(picture, runs, path):
        for one in drawn:
            draw_points(axes, one, _of_key(one.line, key, runs))
        axes.set_xlabel(key.rpartition(".")[2])
        axes.set_ylabel("final return")
