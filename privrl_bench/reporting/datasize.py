"""Figures of the error of private values against the number of users, or against a step size.

A picture's `facts`: `x`, a key of the configuration for every panel; `metric`, which error (eval/mspbe or
eval/relative_mspbe); `caption`. A line with one setting is drawn as a horizontal level.

Source: "Privacy Preserving Off-Policy Evaluation" (Xie, Thomas, Miklau), figures 1 to 4, whose bars are
standard deviations over 100 trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.reporting.paper_table import epsilon_of, status_of
from privrl_bench.reporting.run_figures import drawn_panels
from privrl_bench.reporting.runs import Run, Runs, nested, number

_NAMES = {
    "eval/mspbe": "MSPBE",
    "eval/relative_mspbe": "MSPBE / |average reward|",
    "privacy.population": "trajectories n",
    "algo.lr": "step size of theta",
}


@dataclass(frozen=True)
class Spread:
    """Errors of one setting over trials; `broken` have a non-finite one and are left out."""

    trials: int
    broken: int
    mean: float
    deviation: float
    median: float


def spread_of(runs: Sequence[Run], metric: str) -> Spread:
    """Errors of the last evaluations. The deviation of one trial is nan; without a finite error all are nan."""
    last = [curve[-1] if len(curve) else math.nan for _, curve in (r.curve(metric) for r in runs)]
    finite = np.array([value for value in last if math.isfinite(value)])
    broken = len(last) - len(finite)
    if not len(finite):
        return Spread(len(last), broken, math.nan, math.nan, math.nan)
    deviation = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    middle = float(np.median(finite))
    return Spread(len(last), broken, float(finite.mean()), deviation, middle)


def draw_errors(picture: Any, runs: Runs, path: Path) -> None:
    """Mean with a bar of one standard deviation; formal lines solid, others dashed, levels dotted."""
    facts, keys = picture.facts, iter(picture.facts["x"])
    for axes, panel in drawn_panels(picture, path):
        key = next(keys)
        axes.set_xscale("log")
        axes.set_yscale("log", nonpositive="clip")
        for at, line in enumerate(panel.lines):
            groups = [runs[setting] for setting in line.settings if runs.get(setting)]
            found = [(_setting(some, key), spread_of(some, facts["metric"])) for some in groups]
            if not found:
                continue
            colour = f"C{at % 10}"
            if len(line.settings) == 1:
                axes.axhline(found[0][1].mean, linestyle=":", color=colour, label=line.label)
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
        axes.set_xlabel(_NAMES.get(key, key))
        axes.set_ylabel(_NAMES[facts["metric"]])


def error_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): errors of each setting, and its guarantee."""
    metric, lines = picture.facts["metric"], []
    for panel in picture.panels:
        for line in panel.lines:
            for some in (runs[setting] for setting in line.settings if runs.get(setting)):
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
                        epsilon_of(some),
                        f"{max(number(run.summary.get('delta')) for run in some):g}",
                        status_of(some),
                    ]
                )
    head = ["panel", "line", "n", "lr", "clip", "z", "rounds", f"{_NAMES[metric]}, mean ± std"]
    return [*head, "median", "trials", "epsilon", "delta", "status"], lines


def _setting(runs: Sequence[Run], key: str) -> float:
    """Value of a key of the configuration that runs share; nan if they have none."""
    return number(nested(runs[0].config, *key.split(".")))


def _shown(runs: Sequence[Run], key: str) -> str:
    value = _setting(runs, key)
    return "-" if math.isnan(value) else f"{value:g}"
