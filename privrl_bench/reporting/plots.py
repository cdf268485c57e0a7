"""Plots of runs: those of `privrl report`, of any kind and number, and `curve.png` of a single run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.evaluation.objective import RETURN, Objective
from privrl_bench.functional.statistics import interval_name, profile, shown_interval
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.runs import ENVIRONMENT_STEPS, Run, number, usable
from privrl_bench.reporting.style import (
    MOST_LINES,
    LineMark,
    Look,
    curve,
    dots,
    empty,
    epsilon_axis,
    figure,
    legend,
    level,
    looks,
    looks_of_panels,
    note,
    returns_of,
    steps_axis,
)
from privrl_bench.reporting.table_writer import short
from privrl_bench.reporting.tables import Group, group_runs

_MOST_PANELS = 2  # of one environment; learning curves of more settings cannot be compared by eye
_LONGEST = 120  # characters of a label


def not_drawn(runs: Sequence[Run]) -> str:
    """Why curves and profiles are not drawn: they could not be read; empty if they are drawn."""
    groups = group_runs(runs)
    ((env, count),) = Counter(group.env for group in groups).most_common(1)
    most = _MOST_PANELS * MOST_LINES
    if count > most:
        return f"No figure: {count} settings on {env}, at most {most} can be read."
    if max(len(group.label) for group in groups) > _LONGEST:
        return "No figure: the settings differ in too many keys for a legend."
    return ""


def curves(
    runs: Sequence[Run],
    path: Path,
    metric: str | None = None,
    label: str | None = None,
) -> None:
    """A metric (None: the objective) against steps: mean over seeds, with the interval that the legend names.

    Panels of at most six lines, each of one environment. The mean covers the steps that all seeds of a group
    have reached. Also as SVG.
    """
    groups = [g for g in group_runs([run for run in runs if len(run.curve(metric)[0])]) if g.runs]
    panels = _by_env(groups)
    look = _looks(panels)
    with figure(path, len(panels), vector=True) as places:
        for axes, (env, members) in zip(places, panels, strict=True):
            _declare(axes, members, metric)
            for at, group in enumerate(members):
                _group_curve(axes, group, look[id(group)], metric, (at, len(members)))
            drawn = "bars" if len(members) > 2 else "bands"
            _note_spread(axes, (interval_name(one.seeds, "seeds") for one in members), drawn)
            axes.set_title(env)
            measure = _measure(members)
            steps = members[0].runs[0].steps_name if members else ENVIRONMENT_STEPS
            steps_axis(axes, label or measure.label, steps)
            if metric is None:
                scale(axes, measure)
        legend(places)


def profiles(groups: Sequence[Group], path: Path) -> None:
    """Share of a group's seeds above each return, in panels as of `curves`. Also as SVG."""
    panels = _by_env(groups)
    look = _looks(panels)
    with figure(path, len(panels), vector=True) as places:
        for axes, (env, members) in zip(places, panels, strict=True):
            every = [value for group in members for value in group.values]
            room = 0.03 * (max(every) - min(every)) or 1.0
            at = np.linspace(min(every) - room, max(every) + room, 400)
            for group in members:
                share = profile(group.values, at)
                one = look[id(group)]
                drawn: Any = {"color": one.colour, "linestyle": one.dash, "where": "post"}
                axes.step(at, share, **drawn, label=f"{group.label} ({group.count})")
            axes.set_title(env)
            axes.set_xlabel(f"final {_measure(members).label}")
            axes.set_ylabel("share of seeds above")
            axes.set_ylim(-0.03, 1.03)
        legend(places)


def return_against_epsilon(runs: Sequence[Run], path: Path) -> None:
    """Final return against epsilon: one line for each algorithm and setting, with intervals over seeds.

    The legend names the interval; see `interval_name`. Runs that are not private are levels. One panel per
    environment.
    """
    panels = _by_env(group_runs(usable(runs)), most=None)
    with figure(path, len(panels), vector=True) as places:
        for axes, (env, members) in zip(places, panels, strict=True):
            _declare(axes, members)
            _epsilon_panel(axes, members)
            axes.set_title(env)
            axes.set_ylabel(f"final {_measure(members).label}")
            scale(axes, _measure(members))
        legend(places)


def epsilon_lines(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """(label, groups in order of epsilon) of the lines of return against epsilon, of one environment.

    Settings that change epsilon only are on one line, unless it would have two points at one epsilon. A group
    that is not private is a line of its own.
    """
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if group.epsilon > 0 and math.isfinite(group.epsilon):
            found.setdefault((group.algo, group.line), []).append(group)
    lines: list[tuple[str, list[Group]]] = []
    for (algo, line), members in found.items():
        parts: dict[str, list[Group]] = {line: members}
        if len({shown_epsilon(one.epsilon) for one in members}) < len(members):
            parts = {}
            for one in members:
                parts.setdefault(one.variant, []).append(one)
        for variant, some in parts.items():
            label = ", ".join(part for part in (algo, variant) if part)
            lines.append((label, sorted(some, key=lambda one: one.epsilon)))
    return lines + [(one.label, [one]) for one in groups if math.isinf(one.epsilon)]


def not_monotone(groups: Sequence[Group]) -> list[str]:
    """A sentence for each larger epsilon with a worse mean, which says whether the intervals overlap."""
    found = []
    for env, members in _by_env(groups, most=None):
        for label, line in epsilon_lines(members):
            for one, more in pairwise(line):
                better = (one.mean > more.mean) == (one.measure.direction == "up")
                if one.mean == more.mean or not better:
                    continue
                ends = np.array([group.spread[:2] for group in (one, more)])
                what = "one seed each shows no spread"
                if not np.isnan(ends).any():
                    apart = ends[0][0] > ends[1][1] or ends[1][0] > ends[0][1]
                    names = dict.fromkeys(group.spread[2] for group in (one, more))
                    overlap = "do not overlap" if apart else "overlap"
                    what = f"their intervals ({' and '.join(names)}) {overlap}"
                values = [
                    f"{g.measure.show(g.mean)} at epsilon {shown_epsilon(g.epsilon)}"
                    for g in (more, one)
                ]
                found.append(
                    f"{label} on {env}: {one.measure.name} {values[0]}, {values[1]}; {what}"
                )
    return found


def _epsilon_panel(axes: Any, groups: Sequence[Group]) -> None:
    lines = epsilon_lines(groups)
    marks = [LineMark(some[0].algo, status=_status(some[0])) for _, some in lines]
    known: list[float] = []
    private = sum(math.isfinite(some[0].epsilon) for _, some in lines)  # those come first
    axes.set_xscale("log")
    for at, ((label, members), look) in enumerate(zip(lines, looks(marks), strict=True)):
        mean = np.array([one.mean for one in members])
        ends = np.array([one.spread[:2] for one in members])
        low, high = np.where(np.isnan(ends), mean[:, None], ends).T
        counts = sorted({one.seeds for one in members})
        seeds = f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} seeds"
        if math.isinf(members[0].epsilon):
            level(axes, look, f"{label} ({members[0].count})", float(mean[0]), (low[0], high[0]))
            continue
        x = [one.epsilon for one in members]
        known += x
        status = _status(members[0])
        told = "" if status == "formal" else f", {status}"
        one_label = f"{label}{told} ({members[0].count if counts == [1] else seeds})"
        dots(axes, look, one_label, x, mean, (low, high), (at, private))
    drawn = dict.fromkeys("bands" if math.isinf(one.epsilon) else "bars" for one in groups)
    _note_spread(axes, (one.spread[2] for one in groups), " and ".join(drawn))
    epsilon_axis(axes, known, f"epsilon ({_delta_text(groups)})")
    if not lines:
        empty(axes, "no finished run")


def _group_curve(
    axes: Any, group: Group, look: Look, metric: str | None, turn: tuple[int, int]
) -> None:
    points = [dict(zip(*run.curve(metric), strict=True)) for run in group.runs]
    steps = sorted(set(points[0]).intersection(*points[1:]))
    if not steps:
        return
    mean = np.array([np.mean([one[step] for one in points]) for step in steps])
    label = f"{group.label} ({group.count})"
    ends = None
    if len(points) > 1:
        spread = np.array([shown_interval([one[step] for one in points]) for step in steps])
        ends = (spread[:, 0], spread[:, 1])
    curve(axes, look, label, steps, mean, ends, turn)


def _note_spread(axes: Any, names: Iterable[str], drawn: str) -> None:
    """Say in the legend what the bars and bands are."""
    for name in filter(None, dict.fromkeys(names)):
        note(axes, f"{drawn}: {name}")


def _status(group: Group) -> str:
    """Status of the guarantee; of runs that are not finished, whether they have noise."""
    known = {run.guarantee_status for run in group.runs}
    return "none" if math.isinf(group.epsilon) else min(known, default="none")


def _looks(panels: Sequence[tuple[str, Sequence[Group]]]) -> dict[int, Look]:
    """The look of each group, by its id(): groups with the same label have the same marker."""
    found = looks_of_panels(
        [[(g.label, LineMark(g.algo, g.epsilon, _status(g))) for g in some] for _, some in panels]
    )
    return {
        id(group): look
        for (_, members), some in zip(panels, found, strict=True)
        for group, look in zip(members, some, strict=True)
    }


def _by_env(
    groups: Sequence[Group], most: int | None = MOST_LINES
) -> list[tuple[str, list[Group]]]:
    """(title, groups) of panels, of at most `most` groups of an environment."""
    panels: dict[str, list[Group]] = {}
    for group in groups:
        measure = _measure([group])
        title = group.env if measure is RETURN else f"{group.env}, {measure.label}"
        panels.setdefault(title, []).append(group)
    return [
        (title, members[at : at + (most or len(members))])
        for title, members in panels.items()
        for at in range(0, len(members), most or len(members))
    ] or [("no run", [])]


def _measure(groups: Sequence[Group]) -> Objective:
    """Objective of a panel's runs."""
    return next((run.measure for group in groups for run in group.runs), RETURN)


def _declare(axes: Any, groups: Sequence[Group], metric: str | None = None) -> None:
    """Say of a panel of returns which task it shows."""
    if groups and metric is None and _measure(groups) is RETURN:
        returns_of(axes, groups[0].env)


def scale(axes: Any, measure: Objective) -> None:
    """Errors on a log axis."""
    if measure.direction == "down":
        axes.set_yscale("log", nonpositive="mask")


def _delta_text(groups: Sequence[Group]) -> str:
    deltas = sorted({number(run.summary.get("delta")) for g in groups for run in g.runs})
    finite = [short(delta) for delta in deltas if math.isfinite(delta) and delta > 0]
    return f"delta = {' or '.join(finite)}" if finite else "delta unknown"
