"""Figures of when a task is solved: learning curves held after that, and box plots.

Source: "Differential Privacy in Reinforcement Learning" (Doulazmi, Odonnat), section 3.3: a run has
converged when 25 test episodes in a row have a mean return of 475; from then on its return counts as 500.

What is kept of the runs is `returns.csv.gz`, one row for each: the episode at which it was solved and its held
returns, as means of ten episodes each. Tables and figures are made from rows. Whole curves of hundreds of runs
are too large to be committed.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers.paper_item import shared
from privrl_bench.papers.run_figures import drawn_panels
from privrl_bench.reporting.run_loader import write_gzip
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import curve
from privrl_bench.reporting.table_writer import ABSENT, csv_text

RETURNS_FILE = "returns.csv.gz"
EVERY = 10  # episodes of one mean
_LAST = 100  # episodes at the end, whose mean is the level of a plateau
_SHARE = 0.95  # of that level; 475 of 500 is the level of a solved task
_RESAMPLES = 2000
_ENDS = (0.025, 0.975)
_COLUMNS = ("panel", "line", "algo", "seed", "solved", "epsilon", "status")

Statistic = Callable[[np.ndarray, np.ndarray], float]  # (mean curve, episodes at its points)


@dataclass(frozen=True, eq=False)
class KeptRun:
    """One run of a line of a figure.

    Attributes:
        solved: Episode at which it was solved; None: never.
        returns: [k] held returns, means of `EVERY` episodes each; the last of the rest.
        ends: [k] last episode of each mean.
    """

    panel: str
    line: str
    algo: str
    seed: int
    solved: int | None
    epsilon: float
    status: str
    returns: np.ndarray
    ends: np.ndarray

    @property
    def episode(self) -> float:
        """Episode at which it was solved; the number of episodes if it never was."""
        most = float(self.ends[-1])
        return most if self.solved is None else min(float(self.solved), most)

    @property
    def end(self) -> float:
        """Mean of the last 100 episodes."""
        return float(level_at_end(self.returns, self.ends))


Kept = Mapping[Any, Sequence[KeptRun]]  # a setting -> what is kept of its runs


def means_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of every ten of `values` [n], and the number of the last value of each.

    >>> means_of(np.arange(12.0))
    (array([ 4.5, 10.5]), array([10, 12]))
    """
    starts = np.arange(0, len(values), EVERY)
    ends = np.minimum(starts + EVERY, len(values))
    return np.add.reduceat(values, starts) / (ends - starts), ends


# --- the file


def write_returns(runs: Sequence[KeptRun], folder: Path) -> None:
    """Write `returns.csv.gz`. Its bytes depend on the runs only."""
    ends = max((run.ends for run in runs), key=len, default=np.array([], int))
    lines = [
        [
            run.panel,
            run.line,
            run.algo,
            run.seed,
            "" if run.solved is None else run.solved,
            repr(run.epsilon),
            run.status,
            *(f"{value:.10g}" for value in run.returns.tolist()),
        ]
        for run in runs
    ]
    head = (*_COLUMNS, *map(str, ends.tolist()))
    write_gzip(folder / RETURNS_FILE, csv_text(head, lines))


def read_returns(folder: Path) -> list[KeptRun]:
    """The runs of `returns.csv.gz`, in the order of its rows."""
    text = gzip.decompress((folder / RETURNS_FILE).read_bytes()).decode()
    head, *rows = csv.reader(io.StringIO(text))
    ends = np.array(head[len(_COLUMNS) :], dtype=int)
    found = []
    for row in rows:
        panel, line, algo, seed, solved, epsilon, status, *returns = row
        values = np.array(returns, dtype=float)
        names = (panel, line, algo, int(seed), int(solved) if solved else None)
        found.append(KeptRun(*names, float(epsilon), status, values, ends[: len(values)]))
    return found


def by_line(runs: Iterable[KeptRun]) -> Mapping[tuple[str, str], list[KeptRun]]:
    """(panel, line) -> its runs."""
    found: dict[tuple[str, str], list[KeptRun]] = {}
    for run in runs:
        found.setdefault((run.panel, run.line), []).append(run)
    return found


# --- statistics


def level_at_end(curve: np.ndarray, ends: np.ndarray) -> float:
    """Mean of the last 100 episodes of a curve of means."""
    late = ends > ends[-1] - _LAST
    return float(np.average(curve[late], weights=np.diff(ends, prepend=0)[late]))


def reaches(level: float) -> Statistic:
    """The episode at which a curve is at `level` for the first time; its number of episodes if never."""

    def episode(curve: np.ndarray, ends: np.ndarray) -> float:
        there = np.flatnonzero(curve >= level - 1e-9)
        return float(ends[there[0]] if len(there) else ends[-1])

    return episode


def reaches_plateau(target: float) -> Statistic:
    """The episode at which a curve is at 95 % of its mean over the last 100 episodes for the first time.

    Where that mean is below half of `target`, too little is learned for a plateau: the number of episodes.
    """

    def episode(curve: np.ndarray, ends: np.ndarray) -> float:
        level = level_at_end(curve, ends)
        if level < target / 2:
            return float(ends[-1])
        return reaches(_SHARE * level)(curve, ends)

    return episode


def of_mean_curve(runs: Sequence[KeptRun], statistic: Statistic) -> tuple[float, float, float]:
    """A statistic of the mean curve over runs, and its 95 % bootstrap interval: (value, low, high).

    Runs are resampled with replacement, with a fixed seed. A single run has no interval (NaN).
    """
    length = min(len(run.returns) for run in runs)
    values, ends = np.stack([run.returns[:length] for run in runs]), runs[0].ends[:length]
    value = statistic(values.mean(axis=0), ends)
    if len(runs) == 1:
        return value, float("nan"), float("nan")
    picks = np.random.default_rng(0).integers(len(runs), size=(_RESAMPLES, len(runs)))
    found = [statistic(values[some].mean(axis=0), ends) for some in picks]
    low, high = np.quantile(found, _ENDS)
    return value, float(low), float(high)


def of_single_runs(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The central 95 % range of values of single runs."""
    low, high = np.quantile(np.asarray(values, dtype=float), _ENDS)
    return float(low), float(high)


# --- of runs


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


def kept_runs(picture: Any, runs: Runs) -> list[KeptRun]:
    """What is kept of the runs of all lines: the paper's episodes, or those planned if they are fewer."""
    facts, found = picture.facts, []
    window, target = int(facts["window"]), float(facts["target"])
    for panel in picture.panels:
        for line in panel.lines:
            some = line.runs(runs)
            planned = [int(run.config.get("rounds") or facts["episodes"]) for run in some]
            count = min([int(facts["episodes"]), *planned])
            for run in some:
                steps, returns = run.curve()
                returns = returns[steps > 0]  # not of the initial parameters
                solved = solved_after(returns, window, target)
                means = means_of(held(returns, count, solved, float(facts["held"])))
                names = (panel.label, line.label, run.algo, run.seed or 0)
                found.append(KeptRun(*names, solved, run.epsilon, run.guarantee_status, *means))
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
