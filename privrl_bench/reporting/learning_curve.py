"""The picture of one run: curve.png. matplotlib is imported when it is drawn, and needs no display."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.plots import scale
from privrl_bench.reporting.runs import Run, nested, number
from privrl_bench.reporting.style import PALETTE, LineMark, empty, figure, looks, steps_axis
from privrl_bench.reporting.table_writer import short


def learning_curve(run: Run, path: Path) -> None:
    """The objective of a run against environment steps, with its 95 % interval, and what it is compared with.

    Epsilon is a second axis, on top, where it grows.
    """
    steps, returns = run.curve()
    low, high = _interval(run, steps, returns)
    with figure(path, 1) as (axes,):
        (look,) = looks([LineMark(run.algo)])
        axes.plot(steps, returns, color=look.colour, marker=look.marker, label=run.algo)
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


def _interval(run: Run, steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends [k] of the bootstrap intervals; in rows without them, of the t intervals."""
    measure = run.measure

    def at_steps(name: str | None) -> np.ndarray:
        known = dict(zip(*run.curve(name), strict=True)) if name else {}
        return np.array([known.get(step, math.nan) for step in steps], dtype=float)

    half = at_steps(measure.spread)
    low, high = (at_steps(name) for name in measure.interval or (None, None))
    return (
        np.where(np.isnan(low), values - half, low),
        np.where(np.isnan(high), values + half, high),
    )


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
