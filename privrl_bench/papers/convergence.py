"""Figures of when a task is solved: learning curves held after that, and box plots.

Source: "Differential Privacy in Reinforcement Learning" (Doulazmi, Odonnat), section 3.3: a run has
converged when 25 test episodes in a row have a mean return of 475; from then on its return counts as 500.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers.kept_returns import (
    KeptRun,
    by_line,
    means_of,
    of_mean_curve,
    of_single_runs,
    reaches,
    reaches_plateau,
    write_returns,
)
from privrl_bench.papers.paper_item import shared
from privrl_bench.papers.run_figures import drawn_panels
from privrl_bench.reporting.runs import Run, Runs
from privrl_bench.reporting.style import curve
from privrl_bench.reporting.table_writer import ABSENT

Kept = Mapping[Any, Sequence[KeptRun]]  # a setting -> what is kept of its runs


def solved_after(returns: Sequence[float] | np.ndarray, window: int, target: float) -> int | None:
    """Number of evaluations after which the last `window` of them have a mean >= target; None: never.

    >>> solved_after([1.0, 3.0, 5.0, 9.0], window=2, target=4.0)
    3
    """
    values = np.asarray(returns, dtype=float)
    if len(values) < window:
        return None
    sums = np.convolve(values, np.ones(window), "valid")
    enough = np.flatnonzero(sums >= target * window - 1e-9)
    return int(enough[0]) + window if len(enough) else None


def held(
    returns: Sequence[float] | np.ndarray, count: int, solved: int | None, value: float
) -> np.ndarray:
    """[count] returns, those after evaluation number `solved` replaced by `value`.

    Raises:
        ValueError: A run that was not solved has fewer than `count` evaluations.
    """
    values = np.asarray(returns, dtype=float)[:count]
    if solved is None:
        if len(values) < count:
            raise ValueError(f"{len(values)} evaluations of {count}, and not solved")
        return values
    known = values[: min(solved, count)]
    return np.concatenate([known, np.full(count - len(known), value)])


def count_of(runs: Sequence[Run], facts: Mapping[str, Any]) -> int:
    """Number of episodes that are shown: the paper's, or the planned number if that is smaller."""
    planned = [int(run.config.get("rounds") or facts["episodes"]) for run in runs]
    return min([int(facts["episodes"]), *planned])


def _returns(run: Run) -> np.ndarray:
    """Returns of the evaluations after a training episode: not of the initial parameters."""
    steps, returns = run.curve()
    return returns[steps > 0]


def curves_of(runs: Sequence[Run], facts: Mapping[str, Any]) -> np.ndarray:
    """[runs, episodes] held returns."""
    window, target, count = int(facts["window"]), float(facts["target"]), count_of(runs, facts)
    parts = []
    for run in runs:
        returns = _returns(run)
        solved = solved_after(returns, window, target)
        parts.append(held(returns, count, solved, float(facts["held"])))
    return np.stack(parts)


def kept_runs(picture: Any, runs: Runs) -> list[KeptRun]:
    """What is kept of the runs of all lines."""
    facts, found = picture.facts, []
    for panel in picture.panels:
        for line in panel.lines:
            some = line.runs(runs)
            curves = list(curves_of(some, facts)) if some else []
            for run, values in zip(some, curves, strict=True):
                returns, ends = means_of(values)
                solved = solved_after(_returns(run), int(facts["window"]), float(facts["target"]))
                seed, status = run.seed or 0, run.guarantee_status
                found.append(
                    KeptRun(
                        panel.label,
                        line.label,
                        run.algo,
                        seed,
                        solved,
                        run.epsilon,
                        status,
                        returns,
                        ends,
                    )
                )
    return found


def kept(picture: Any, runs: Runs) -> Kept:
    """What is kept of runs, by setting."""
    return by_setting(picture, kept_runs(picture, runs))


def by_setting(picture: Any, rows: Sequence[KeptRun]) -> Kept:
    """The first setting of each line, and all runs of the line. Runs of other lines are left out."""
    lines = by_line(rows)
    return {
        line.settings[0]: lines[panel.label, line.label]
        for panel in picture.panels
        for line in panel.lines
        if (panel.label, line.label) in lines
    }


def keep(picture: Any, runs: Kept, out: Path) -> None:
    """Write `returns.csv.gz`, unless another item keeps the runs, which `kept` then names."""
    if "kept" not in picture.facts:
        write_returns(rows_of(picture, runs), out)


def rows_of(picture: Any, runs: Kept) -> list[KeptRun]:
    """Runs of every line in turn, under the names of its panel and its own."""
    return [
        replace(run, panel=panel.label, line=line.label)
        for panel in picture.panels
        for line in panel.lines
        for run in line.runs(runs)
    ]


def table(picture: Any, runs: Kept) -> tuple[list[str], list[list[str]]]:
    """(head, lines): when runs were solved, and their returns at the end."""
    level, lines = float(picture.facts["target"]), []
    for (panel, line), some in by_line(rows_of(picture, runs)).items():
        when = np.array([run.episode for run in some])
        low, middle, high = np.quantile(when, [0.25, 0.5, 0.75])
        mean, half = mean_ci([run.end for run in some])
        lines.append(
            [
                panel,
                line,
                str(len(some)),
                str(sum(run.solved is not None for run in some)),
                f"{when.mean():.0f}",
                f"{middle:.0f}",
                f"{low:.0f} to {high:.0f}",
                "{:.0f} to {:.0f}".format(*of_single_runs(when)),
                *_with_interval(of_mean_curve(some, reaches(level))),
                *_with_interval(of_mean_curve(some, reaches_plateau(level))),
                f"{mean:.0f} ± {half:.0f}",
                shown_epsilon(max(run.epsilon for run in some)),
                shared([run.status for run in some]),
            ]
        )
    head = ["panel", "line", "runs", "solved", "mean episode", "median", "quartiles"]
    head += ["single runs, 95 %", f"curve at {level:g}", f"curve at {level:g}, 95 %"]
    head += ["plateau", "plateau, 95 %"]
    return [*head, "last 100 episodes", "epsilon", "status"], lines


def _with_interval(found: tuple[float, float, float]) -> tuple[str, str]:
    value, low, high = found
    return f"{value:.0f}", ABSENT if math.isnan(low) else f"{low:.0f} to {high:.0f}"


def draw_held(picture: Any, runs: Kept, path: Path) -> None:
    """Held returns against episodes: mean with its 95 % interval, or with `statistic: median` quartiles."""
    facts = picture.facts
    shown = int(facts.get("shown", facts["episodes"]))
    for axes, drawn in drawn_panels(picture, runs, path):
        for one in drawn:
            some = one.line.runs(runs)
            length = min(len(run.returns) for run in some)
            x = some[0].ends[:length]
            x = x[x <= max(shown, x[0])]
            values = np.stack([run.returns[: len(x)] for run in some])
            middle, low, high = _band(values, str(facts.get("statistic", "mean")))
            curve(axes, one.look, one.line.label, x, middle, (low, high), one.turn)
        axes.set_xlabel("training episodes")
        axes.set_ylabel(f"{facts.get('statistic', 'mean')} test return")


def _band(values: np.ndarray, statistic: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Middle, lower and upper line of [runs, episodes]."""
    if statistic == "median":
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        return middle, low, high
    pairs = np.array([mean_ci(column.tolist()) for column in values.T])
    half = np.nan_to_num(pairs[:, 1])
    return pairs[:, 0], pairs[:, 0] - half, pairs[:, 0] + half


def draw_boxes(picture: Any, runs: Kept, path: Path) -> None:
    """Box plots of the episode after which runs were solved; those never solved have the last."""
    facts = picture.facts
    for axes, drawn in drawn_panels(picture, runs, path, with_legend=False):
        if drawn:
            axes.boxplot(
                [[run.episode for run in one.line.runs(runs)] for one in drawn],
                tick_labels=[one.line.label for one in drawn],
                showmeans=True,
                flierprops={"markersize": 2},
            )
            for name in axes.get_xticklabels():
                name.set(rotation=35, ha="right", rotation_mode="anchor")
        axes.set_ylabel(f"episodes until solved\n(at most {facts['episodes']})")
