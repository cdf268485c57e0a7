"""Box plots of the range of a dataset's observations.

Source: "Differential Privacy in Reinforcement Learning" (Doulazmi, Odonnat), figure 4 and table 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.datasets.minari_read import open_dataset
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import figure


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


def state_table(picture: Any, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): quartiles and range of each observation, and the paper's interquartile range."""
    facts = picture.facts
    values = observations(facts["data"])
    lines = []
    for name, column, paper in zip(facts["names"], values.T, facts["paper"], strict=True):
        low, middle, high = np.quantile(column, [0.25, 0.5, 0.75])
        lines.append(
            [
                name,
                f"{low:.3f}",
                f"{middle:.3f}",
                f"{high:.3f}",
                f"{high - low:.3f}",
                f"{paper:g}",
                f"{column.min():.2f} to {column.max():.2f}",
                str(len(column)),
            ]
        )
    head = ["state", "25 %", "median", "75 %", "interquartile range", "paper", "all", "steps"]
    return head, lines
