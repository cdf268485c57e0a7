"""Plots of runs: those of `privrl report`, of any kind and number, and `curve.png` of a single run."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.evaluation.objective import RETURN, Objective
from privrl_bench.functional.statistics import interval_name, profile, shown_interval
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.runs import ENVIRONMENT_STEPS, Run, nested, number, usable
from privrl_bench.reporting.style import (
    MOST_LINES,
    PALETTE,
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
            axes.set_title(env)
            measure = _measure(members)
            steps_axis(
                axes,
                label or measure.label,
                members[0].runs[0].steps_name if members else ENVIRONMENT_STEPS,
            )
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
                axes.step(at, share, **drawn, label=group.label)
            axes.set_title(env)
            axes.set_xlabel(f"final {_measure(members).label}")
            axes.set_ylabel("share of seeds above")
            axes.set_ylim(-0.03, 1.03)
        legend(places)


def return_against_epsilon(runs: Sequence[Run], path: Path) -> None:
    """Final return against epsilon, one point per noise multiplier with an interval over seeds.

    The legend names the interval; see `interval_name`.
    Runs without a finite epsilon are levels. One panel per environment.
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


def _epsilon_panel(axes: Any, groups: Sequence[Group]) -> None:
    lines: dict[tuple[str, str, float], list[Group]] = {}
    for group in groups:
        epsilon = group.epsilon
        if math.isinf(epsilon):
            lines[group.algo, group.label, epsilon] = [group]
        elif epsilon > 0:
            lines.setdefault((group.algo, group.variant, 0.0), []).append(group)
    axes.set_xscale("log")
    known = []
    marks = [LineMark(key[0], status=_status(members[0])) for key, members in lines.items()]
    for at, (key, look) in enumerate(zip(lines, looks(marks), strict=True)):
        members = sorted(lines[key], key=lambda one: one.epsilon)
        mean, low, high = np.array([_spread(one.runs) for one in members]).T
        label = ", ".join(part for part in key[:2] if part) + f" ({_status(members[0])} guarantee)"
        if math.isinf(key[2]):
            label = f"{key[1]}: not private{_of_bars(members)}"
            level(axes, look, label, float(mean[0]))
        else:
            x = [one.epsilon for one in members]
            known += x
            label += _of_bars(members)
            dots(axes, look, label, x, mean, (low, high), (at, len(lines)))
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
    count = f"{len(points)} seed{'s' if len(points) > 1 else ''}"
    name = f"{count}{_of_bars([group])}"
    label = f"{group.label} ({name}, epsilon {shown_epsilon(group.epsilon)})"
    ends = None
    if len(points) > 1:
        spread = np.array([shown_interval([one[step] for one in points]) for step in steps])
        ends = (spread[:, 0], spread[:, 1])
    curve(axes, look, label, steps, mean, ends, turn)


def _spread(runs: Sequence[Run]) -> tuple[float, float, float]:
    """Mean of the final values and the ends of its interval, which are the mean for one run."""
    values = [run.final_value for run in runs]
    mean = float(np.mean(values))
    low, high = shown_interval(values)
    return (mean, mean, mean) if math.isnan(low) else (mean, low, high)


def _of_bars(groups: Sequence[Group]) -> str:
    """What the bars of points are, for a legend."""
    names = dict.fromkeys(interval_name(len(group.runs), "seeds") for group in groups)
    return "".join(f", {name}" for name in names if name)


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


# --- one run


def learning_curve(run: Run, path: Path) -> None:
    """The objective of a run against environment steps, with its 95 % interval, and what it is compared with.

    Epsilon is a second axis, on top, where it grows.
    """
    steps, returns = run.curve()
    with figure(path, 1) as (axes,):
        (look,) = looks([LineMark(run.algo)])
        axes.plot(steps, returns, color=look.colour, marker=look.marker, label=run.algo)
        if run.measure.interval:
            ends = (dict(zip(*run.curve(name), strict=True)) for name in run.measure.interval)
            low, high = ([known.get(step, math.nan) for step in steps] for known in ends)
            axes.fill_between(steps, low, high, color=look.colour, alpha=0.2, linewidth=0)
        if not len(steps):
            empty(axes, "no evaluation yet")
        known = run.summary.get("references") or {}
        for at, (name, reference) in enumerate(known.items(), start=1):
            value = number(reference.get("mean"))
            label = f"{name} ({run.measure.show(value)})"
            axes.axhline(value, color=PALETTE[-at % len(PALETTE)], linestyle="--", label=label)
        if known:
            axes.legend(loc="best", frameon=True, framealpha=0.8)
        axes.set_title(_run_title(run))
        steps_axis(axes, run.measure.label, run.steps_name)
        _epsilon_axis(axes, run)
        scale(axes, run.measure)


def _epsilon_axis(axes: Any, run: Run) -> None:
    """Epsilon spent at some of the steps, on top; nothing where it is unknown, infinite or constant."""
    steps, spent = run.curve("privacy/epsilon")
    after = (steps > 0) & np.isfinite(spent)
    steps, spent = steps[after], spent[after]
    if len(spent) < 2 or not spent[-1] > spent[0]:
        return
    width = float(steps[-1])
    wanted = width * np.linspace(0.2, 1.0, 5)
    places = sorted({int(np.abs(steps - one).argmin()) for one in wanted})
    ticks: dict[str, float] = {}  # of equal labels the first: epsilon hardly grows after it
    for place in places:
        ticks.setdefault(shown_epsilon(float(spent[place])), float(steps[place]))
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(ticks.values()), list(ticks))
    top.set_xlabel("epsilon spent")


def _run_title(run: Run) -> str:
    """Title in two lines: the run, and its guarantee."""
    what = f"{run.env}, {run.algo}" + ("" if run.z is None else f", z = {run.z:g}")
    if run.seed is not None:
        what += f", seed {run.seed}"
    if not run.summary:
        return f"{what}\n{run.state}"
    if math.isinf(run.epsilon):
        return f"{what}\nnot private (epsilon inf)"
    notion = nested(run.summary, "guarantee", "unit")
    unit = f", unit: {notion}" if notion else ""
    delta = short(number(run.summary.get("delta")))
    guarantee = (
        f"epsilon {shown_epsilon(run.epsilon)} at delta {delta}, {run.guarantee_status} guarantee"
    )
    return "\n".join([what, guarantee, *textwrap.wrap(unit.removeprefix(", "), 78)])
