"""Figures of the error of private values against the number of users, or against a step size.

A picture's `facts`: `x`, a key of the configuration for every panel; `metric`, which error (eval/mspbe or
eval/relative_mspbe); `caption`. A line with one setting is a level.

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

from privrl_bench.papers.paper_item import epsilon_of, status_of
from privrl_bench.privacy.mechanisms import mechanism_class
from privrl_bench.reporting.runs import Run, Runs, nested, number
from privrl_bench.reporting.style import (
    REFERENCE,
    LineMark,
    dots,
    figure,
    legend,
    level,
    looks_of_panels,
)

_NAMES = {
    "eval/mspbe": "MSPBE",
    "eval/relative_mspbe": "MSPBE / |average reward|",
    "privacy.population": "trajectories n",
    "algo.lr": "step size of theta",
}
_COLUMNS = {"privacy.population": "n", "algo.lr": "lr"}  # of the table


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


def draw_errors(picture: Any, rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Mean with a bar of one standard deviation, from the lines of the item's table."""
    panels = []
    for panel in picture.panels:
        found = []
        for line in panel.lines:
            own = [row for row in rows if (row["panel"], row["line"]) == (panel.label, line.label)]
            if own:
                algo = next(w[5:] for w in line.settings[0].words if w.startswith("algo="))
                mark = LineMark(algo, max(number(row["epsilon"]) for row in own), own[0]["status"])
                found.append((line, mark, own))
        panels.append(found)
    every = looks_of_panels([[(line.label, mark) for line, mark, _ in some] for some in panels])
    with figure(path, len(panels), vector=True) as places:
        for axes, panel, key, lines, looks in zip(
            places, picture.panels, picture.facts["x"], panels, every, strict=False
        ):
            axes.set_xscale("log")
            axes.set_yscale("log", nonpositive="clip")
            for at, ((line, mark, own), look) in enumerate(zip(lines, looks, strict=True)):
                x = np.array([number(row[_COLUMNS[key]]) for row in own])
                mean, deviation = np.array([_error(row) for row in own]).T
                if len(line.settings) == 1:
                    formal = mark.status == "formal" and "does nothing" not in line.label
                    level(axes, look if formal else REFERENCE, line.label, mean[0])
                else:
                    ends = (mean - deviation, mean + deviation)
                    dots(axes, look, line.label, x, mean, ends, (at, len(lines)))
            axes.set_title(panel.label)
            axes.set_xlabel(_NAMES.get(key, key))
            axes.set_ylabel(_NAMES[picture.facts["metric"]])
        legend(places)


def error_of(row: Mapping[str, str]) -> str:
    """Mean and deviation of a line of the table."""
    return next(value for key, value in row.items() if key.endswith("mean ± std"))


def _error(row: Mapping[str, str]) -> tuple[float, float]:
    mean, _, deviation = error_of(row).partition(" ± ")
    return number(mean), number(deviation)


def error_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): errors of each setting, and its guarantee."""
    metric, lines = picture.facts["metric"], []
    for panel in picture.panels:
        for line in panel.lines:
            for some in (runs[setting] for setting in line.settings if runs.get(setting)):
                spread = spread_of(some, metric)
                private = all(run.z is not None for run in some)
                kind = mechanism_class(nested(some[0].config, "privacy", "mechanism"))
                noised = private and kind.norm is not None
                lines.append(
                    [
                        panel.label,
                        line.label,
                        f"{_setting(some, 'privacy.population'):g}",
                        _shown(some, "algo.lr"),
                        _shown(some, "privacy.clip") if noised else "-",
                        _shown(some, "privacy.z") if noised else "-",
                        _shown(some, "rounds"),
                        f"{spread.mean:.3g} ± {float(f'{spread.deviation:.2g}'):.3g}",
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
