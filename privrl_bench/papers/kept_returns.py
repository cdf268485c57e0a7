"""What is kept of runs until a task is solved: `returns.csv.gz`, one row for each run, and statistics of it.

A row has the episode at which the run was solved and its held returns, as means of ten episodes each. Tables
and figures are made from rows. Whole curves of hundreds of runs are too large to be committed.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privrl_bench.reporting.table_writer import csv_text

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
    text = csv_text((*_COLUMNS, *map(str, ends.tolist())), lines).encode()
    with (
        (folder / RETURNS_FILE).open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, 0) as zipped,
    ):
        zipped.write(text)


def read_returns(folder: Path) -> list[KeptRun]:
    """The runs of `returns.csv.gz`, in the order of its rows."""
    text = gzip.decompress((folder / RETURNS_FILE).read_bytes()).decode()
    head, *rows = csv.reader(io.StringIO(text))
    ends = np.array(head[len(_COLUMNS) :], dtype=int)
    found = []
    for row in rows:
        panel, line, algo, seed, solved, epsilon, status, *returns = row
        values = np.array(returns, dtype=float)
        found.append(
            KeptRun(
                panel,
                line,
                algo,
                int(seed),
                int(solved) if solved else None,
                float(epsilon),
                status,
                values,
                ends[: len(values)],
            )
        )
    return found


def merged(known: Iterable[KeptRun], more: Iterable[KeptRun]) -> list[KeptRun]:
    """Runs of two collections, those of a line together, by seed.

    Raises:
        ValueError: A run is in both.
    """
    found: dict[tuple[str, str, int], KeptRun] = {}
    for run in (*known, *more):
        key = (run.panel, run.line, run.seed)
        if key in found:
            raise ValueError(f"seed {run.seed} of {run.panel}, {run.line} is there already")
        found[key] = run
    lines = by_line(found.values())
    return [run for some in lines.values() for run in sorted(some, key=lambda run: run.seed)]


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
