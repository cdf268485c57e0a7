"""Errors of private values against the number of people, or against a step size: log axes, standard deviations.

A picture's `facts`: `x`, a key of the configuration for every panel; `metric`, which error (eval/mspbe or
eval/relative_mspbe); `caption`. A line with one setting is a level that others stand against.

Source: "Privacy Preserving Off-Policy Evaluation" (Xie, Thomas, Miklau), figures 1 to 4, whose bars are
standard deviations over 100 trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.plots import figure, legend_below
from privrl_bench.reporting.runs import Run, nested, number

_NAMES = {
    "eval/mspbe": "MSPBE",
    "eval/relative_mspbe": "MSPBE / |average reward|",
    "privacy.population": "trajectories n",
    "algo.lr": "step size of theta",
}


@dataclass(frozen=True)
class Spread:
    """Errors of one setting over trials; `broken` of them have no finite error and are left out of the rest."""

    trials: int
    broken: int
    mean: float
    deviation: float
    median: float


def spread_of(runs: Sequence[Run], metric: str) -> Spread:
    """Of the last evaluations of runs. Sample deviation, nan for one trial; all nan where none is finite."""
    last = [curve[-1] if len(curve) else math.nan for _, curve in (r.curve(metric) for r in runs)]
    finite = np.array([value for value in last if math.isfinite(value)])
    broken = len(last) - len(finite)
    if not len(finite):
        return Spread(len(last), broken, math.nan, math.nan, math.nan)
    deviation = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    middle = float(np.median(finite))
    return Spread(len(last), broken, float(finite.mean()), deviation, middle)


def draw_errors(picture: Any, runs: Mapping[Any, Sequence[Run]], path: Path) -> None:
    """Mean with a bar of one standard deviation; formal lines solid, others dashed, levels dotted."""
    facts = picture.facts
    most = max(len(panel.lines) for panel in picture.panels)
    with figure(path, len(picture.panels), legend_below=most, vector=True) as places:
        for axes, panel, key in zip(places, picture.panels, facts["x"], strict=True):
            axes.set_xscale("log")
            axes.set_yscale("log", nonpositive="clip")
            for at, line in enumerate(panel.lines):
                groups = [runs[want] for want in line.needs_release if runs.get(want)]
                found = [(_setting(some, key), spread_of(some, facts["metric"])) for some in groups]
                if not found:
                    continue
                colour = f"C{at % 10}"
                if len(line.needs_release) == 1:
                    level = found[0][1].mean
                    axes.axhline(level, linestyle=":", color=colour, label=line.label)
                    continue
                axes.errorbar(
                    [x for x, _ in found],
                    [spread.mean for _, spread in found],
                    yerr=[np.nan_to_num(spread.deviation) for _, spread in found],
                    fmt="o-" if line.formal else "s--",
                    capsize=3,
                    color=colour,
                    label=line.label,
                )
            axes.set_title(panel.label)
            axes.set_xlabel(_NAMES.get(key, key))
            axes.set_ylabel(_NAMES[facts["metric"]])
            if axes.get_legend_handles_labels()[0]:
                legend_below(axes)


def error_table(
    picture: Any, runs: Mapping[Any, Sequence[Run]]
) -> tuple[list[str], list[list[str]]]:
    """The numbers behind it, with what each setting guarantees."""
    metric, lines = picture.facts["metric"], []
    for panel in picture.panels:
        for line in panel.lines:
            for some in (runs[want] for want in line.needs_release if runs.get(want)):
                spread = spread_of(some, metric)
                private = all(run.z is not None for run in some)
                noised = private and nested(some[0].config, "privacy", "mechanism") == "gaussian"
                lines.append(
                    [
                        panel.label,
                        line.label,
                        f"{_setting(some, 'privacy.population'):g}",
                        _shown(some, "algo.lr"),
                        _shown(some, "privacy.clip") if noised else "-",
                        _shown(some, "privacy.z") if noised else "-",
                        _shown(some, "rounds"),
                        f"{spread.mean:.3g} ± {spread.deviation:.2g}",
                        f"{spread.median:.3g}",
                        f"{spread.trials}" + (f" ({spread.broken} broken)" * (spread.broken > 0)),
                        shown_epsilon(max(run.epsilon for run in some)),
                        f"{max(number(run.summary.get('delta')) for run in some):g}",
                        "/".join(sorted({run.guarantee_status for run in some})),
                    ]
                )
    head = ["panel", "line", "n", "lr", "clip", "z", "rounds", f"{_NAMES[metric]}, mean ± std"]
    return [*head, "median", "trials", "epsilon", "delta", "status"], lines


def _setting(runs: Sequence[Run], key: str) -> float:
    """The number that runs of one setting have at a key of their configuration; nan where they have none."""
    return number(nested(runs[0].config, *key.split(".")))


def _shown(runs: Sequence[Run], key: str) -> str:
    value = _setting(runs, key)
    return "-" if math.isnan(value) else f"{value:g}"
