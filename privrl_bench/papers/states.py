"""Box plots of the range of a dataset's observations.

Source: "Differential Privacy in Reinforcement Learning" (Doulazmi, Odonnat), figure 4 and table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.packs.offline.datasets.minari_files import open_dataset
from privrl_bench.papers.convergence import of_single_runs
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import figure
from privrl_bench.reporting.table_writer import csv_text

RANGES_FILE = "ranges.csv"


def observations(name: str) -> np.ndarray:
    """[N, D] observations of a local dataset before every step.

    Raises:
        ConfigError: The dataset does not exist.
    """
    flat = open_dataset(name)
    first = np.arange(flat.steps) + np.repeat(np.arange(flat.episodes), flat.lengths)
    return np.asarray(flat.observations[first], dtype=np.float64)


def draw_states(picture: Any, runs: Runs, path: Path) -> None:
    """One box for each observation; whiskers at 1.5 interquartile ranges, without outliers."""
    facts = picture.facts
    with figure(path, 1, vector=True) as (axes,):
        axes.boxplot(observations(facts["data"]), tick_labels=facts["names"], showfliers=False)
        axes.set_title(facts["data"])
        axes.set_ylabel("state, in its own unit")


def ranges_of_runs(facts: Mapping[str, Any]) -> np.ndarray:
    """[runs, D] interquartile range of each observation in every training run of a dataset.

    Runs are recorded one after the other (`together=1`), each with `facts["episodes"]` episodes.

    Raises:
        ConfigError: The dataset does not exist.
        ValueError: It does not have whole runs.
    """
    flat, each = open_dataset(facts["data"]), int(facts["episodes"])
    if flat.episodes % each:
        raise ValueError(f"{facts['data']}: {flat.episodes} episodes are not runs of {each}")
    values, first = observations(facts["data"]), flat.starts[::each]
    quartiles = [
        np.quantile(values[begin:end], [0.25, 0.75], axis=0) for begin, end in pairwise(first)
    ]
    return np.array([high - low for low, high in quartiles])


def keep_ranges(picture: Any, runs: Runs, out: Path) -> None:
    """Write `ranges.csv`: the interquartile range of each observation in each training run."""
    found = ranges_of_runs(picture.facts)
    lines = [[run, *(f"{value:.4f}" for value in row)] for run, row in enumerate(found.tolist())]
    text = csv_text(("run", *picture.facts["names"]), lines)
    (out / RANGES_FILE).write_text(text, encoding="utf-8")


def state_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): quartiles and range of each observation, and the paper's interquartile range.

    Of the interquartile range also the median over single runs and their central 95 %.
    """
    facts = picture.facts
    values, singles = observations(facts["data"]), ranges_of_runs(facts)
    lines = []
    columns = zip(facts["names"], values.T, singles.T, facts["paper"], strict=True)
    for name, column, single, paper in columns:
        low, middle, high = np.quantile(column, [0.25, 0.5, 0.75])
        least, most = of_single_runs(single)
        lines.append(
            [
                name,
                f"{low:.3f}",
                f"{middle:.3f}",
                f"{high:.3f}",
                f"{high - low:.3f}",
                str(len(single)),
                f"{np.median(single):.3f}",
                f"{least:.3f} to {most:.3f}",
                f"{paper:g}",
                f"{column.min():.2f} to {column.max():.2f}",
                str(len(column)),
            ]
        )
    head = ["state", "25 %", "median", "75 %", "interquartile range", "runs", "median of runs"]
    return [*head, "single runs, 95 %", "paper", "all", "steps"], lines
