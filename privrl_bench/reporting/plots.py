"""Plots of runs. matplotlib is imported when a plot is drawn, and needs no display."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.evaluation.objective import RETURN, Objective
from privrl_bench.functional.statistics import interval_name, profile, shown_interval
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.runs import ENVIRONMENT_STEPS, Run, number, usable
from privrl_bench.reporting.table_writer import short
from privrl_bench.reporting.tables import Group, group_runs

STYLE: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "privrl_bench",  # the same runs give the same file
}
_PANELS_ACROSS = 3


def curves(
    runs: Sequence[Run],
    path: Path,
    metric: str | None = None,
    label: str | None = None,
) -> None:
    """A metric (None: the objective) against steps: mean over seeds, thin lines, a band that the legend names.

    One panel per environment. The mean covers the steps that all seeds of a group have reached. Also as SVG.
    """
    groups = [g for g in group_runs([run for run in runs if len(run.curve(metric)[0])]) if g.runs]
    panels = _by_env(groups)
    with figure(path, len(panels), legend_below=_rows(panels), vector=True) as places:
        for axes, (env, members) in zip(places, panels, strict=True):
            for group, colour in zip(members, _colours(members), strict=True):
                _group_curve(axes, group, colour, metric)
            axes.set_title(env)
            measure = _measure(members)
            steps_axis(
                axes, label or measure.label, members[0].runs[0].steps_name if members else None
            )
            if metric is None:
                scale(axes, measure)
            _legend(axes, members)


def profiles(groups: Sequence[Group], path: Path) -> None:
    """Share of a group's seeds above each return, one panel per environment. Also as SVG."""
    panels = _by_env(groups)
    with figure(path, len(panels), legend_below=_rows(panels), vector=True) as places:
        for axes, (env, members) in zip(places, panels, strict=True):
            every = [run.final_value for group in members for run in group.runs]
            room = 0.03 * (max(every) - min(every)) or 1.0
            at = np.linspace(min(every) - room, max(every) + room, 400)
            for group, colour in zip(members, _colours(members), strict=True):
                share = profile([run.final_value for run in group.runs], at)
                axes.step(at, share, where="post", color=colour, label=group.label)
            axes.set_title(env)
            axes.set_xlabel(f"final {_measure(members).label}")
            axes.set_ylabel("share of seeds above")
            axes.set_ylim(-0.03, 1.03)
            _legend(axes, members)


def return_against_epsilon(runs: Sequence[Run], path: Path) -> None:
    """Final return against epsilon, one point per noise multiplier with an interval over seeds.

    The legend names the interval; see `interval_name`.
    Runs without a finite epsilon are dashed lines. One panel per environment.
    """
    panels = _by_env(group_runs(usable(runs)))
    with figure(path, len(panels), legend_below=_rows(panels), vector=True) as places:
        for axes, (env, members) in zip(places, panels, strict=True):
            _epsilon_panel(axes, members)
            axes.set_title(env)
            _log_ticks(axes)
            axes.set_xlabel(
                f"epsilon ({_delta_text(members)}, log scale), less private to the right"
            )
            axes.set_ylabel(f"final {_measure(members).label}")
            scale(axes, _measure(members))
            _legend(axes, members)


def _log_ticks(axes: Any) -> None:
    """Plain numbers on a log x axis: a decade has three of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if axes.get_xticks().size:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _epsilon_panel(axes: Any, groups: Sequence[Group]) -> None:
    lines: dict[tuple[str, str], list[Group]] = {}
    not_private = []
    for group in groups:
        epsilon = max(run.epsilon for run in group.runs)
        if math.isfinite(epsilon) and epsilon > 0:
            lines.setdefault((group.algo, group.variant), []).append(group)
        elif math.isinf(epsilon):
            not_private.append(group)
    axes.set_xscale("log")
    for at, ((algo, variant), members) in enumerate(lines.items()):
        members = sorted(members, key=lambda group: max(run.epsilon for run in group.runs))
        x = [max(run.epsilon for run in group.runs) for group in members]
        y, low, high = np.array([_spread(one.runs) for one in members]).T
        statuses = "/".join(sorted({run.guarantee_status for g in members for run in g.runs}))
        label = ", ".join(part for part in (algo, variant) if part) + f" ({statuses} guarantee)"
        label += _of_bars(members)
        axes.errorbar(
            x, y, yerr=(y - low, high - y), fmt="o-", capsize=3, color=f"C{at}", label=label
        )
        for group, px, py in zip(members, x, y, strict=True):
            if group.z is not None:
                axes.annotate(
                    f"z = {group.z:g}",
                    (px, py),
                    xytext=(5, -12),
                    textcoords="offset points",
                    fontsize=8,
                    color=f"C{at}",
                )
    for at, group in enumerate(not_private, start=len(lines)):
        mean, below, above = _spread(group.runs)
        label = f"{group.label}: not private{_of_bars([group])}"
        axes.axhline(mean, linestyle="--", color=f"C{at}", label=label)
        if above > below:
            axes.axhspan(below, above, color=f"C{at}", alpha=0.1, linewidth=0)
    if not lines:
        axes.set_xlim(0.1, 10.0)  # no run has a finite epsilon
        axes.set_xticks([], [])
        if not not_private:
            empty(axes, "no finished run")
    known = {max(run.epsilon for run in g.runs) for members in lines.values() for g in members}
    if len(known) == 1:
        (only,) = known
        axes.set_xlim(only / 3, only * 3)
    axes.margins(x=0.12)


def _group_curve(axes: Any, group: Group, colour: Any, metric: str | None) -> None:
    points = [dict(zip(*run.curve(metric), strict=True)) for run in group.runs]
    for one in points:
        axes.plot(list(one), list(one.values()), color=colour, alpha=0.3, linewidth=0.8)
    steps = sorted(set(points[0]).intersection(*points[1:]))
    mean = np.array([np.mean([one[step] for one in points]) for step in steps])
    count = f"{len(points)} seed{'s' if len(points) > 1 else ''}"
    band = "".join(f", {name}" for name in [interval_name(len(points), "seeds")] if name)
    label = f"{group.label} ({count}{band}, epsilon {shown_epsilon(_epsilon(group))})"
    axes.plot(steps, mean, color=colour, linewidth=1.8, label=label)
    if len(points) > 1:
        ends = np.array([shown_interval([one[step] for one in points]) for step in steps])
        axes.fill_between(steps, *ends.reshape(-1, 2).T, color=colour, alpha=0.18, linewidth=0)


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


def _epsilon(group: Group) -> float:
    """Largest final epsilon of the group, nan while none is known."""
    known = [run.epsilon for run in group.runs if not math.isnan(run.epsilon)]
    return max(known, default=math.nan)


def _colours(groups: Sequence[Group]) -> list[Any]:
    """One colour each: the standard cycle for few groups, a graded scale for a long sweep."""
    if len(groups) <= 10:
        return [f"C{at}" for at in range(len(groups))]
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 0.92, len(groups))))


def _by_env(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    panels: dict[str, list[Group]] = {}
    for group in groups:
        measure = _measure([group])
        title = group.env if measure is RETURN else f"{group.env}, {measure.label}"
        panels.setdefault(title, []).append(group)
    return list(panels.items()) or [("no run", [])]


def _measure(groups: Sequence[Group]) -> Objective:
    """Objective of a panel's runs."""
    return next((run.measure for group in groups for run in group.runs), RETURN)


def scale(axes: Any, measure: Objective) -> None:
    """Errors on a log axis."""
    if measure.direction == "down":
        axes.set_yscale("log", nonpositive="mask")


def _rows(panels: Sequence[tuple[str, list[Group]]]) -> int:
    return max(len(groups) for _, groups in panels)


@contextmanager
def figure(
    path: Path, panels: int, legend_below: int = 0, vector: bool = False
) -> Iterator[Sequence[Any]]:
    """`panels` axes, three to a row, saved to `path`; room for `legend_below` legend lines under each.

    `vector`: also as SVG, beside it.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        # No pyplot: no global state, and no display is needed.
        wide = min(panels, _PANELS_ACROSS)
        high = math.ceil(panels / wide)
        size = (6.4 * wide, (4.0 + 0.2 * legend_below) * high)
        made = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(made)
        places = list(made.subplots(high, wide, squeeze=False).ravel())
        for spare in places[panels:]:
            spare.remove()
        yield places[:panels]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        made.savefig(path)
        if vector:
            made.savefig(Path(path).with_suffix(".svg"), metadata={"Date": None})


def _legend(axes: Any, groups: Sequence[Group]) -> None:
    if groups:
        legend_below(axes)


def legend_below(axes: Any) -> None:
    """A legend below the panel, where it covers no curve."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), borderaxespad=0.0)


def legend_or_note(axes: Any) -> None:
    """A legend below the panel if anything has a label, else a note that there is no run."""
    if axes.get_legend_handles_labels()[0]:
        legend_below(axes)
    else:
        axes.text(0.5, 0.5, "no run", ha="center", va="center", transform=axes.transAxes)


def steps_axis(axes: Any, label: str = RETURN.label, steps: str | None = None) -> None:
    """Steps, by default of an environment, on the x axis, `label` on the y axis."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(steps or ENVIRONMENT_STEPS)
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def empty(axes: Any, text: str) -> None:
    """A note in the middle of a panel without data."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="gray")


def _delta_text(groups: Sequence[Group]) -> str:
    deltas = sorted({number(run.summary.get("delta")) for g in groups for run in g.runs})
    finite = [short(delta) for delta in deltas if math.isfinite(delta) and delta > 0]
    return f"delta = {' or '.join(finite)}" if finite else "delta unknown"
