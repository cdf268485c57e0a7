"""Box plots of what a dataset's observations range over; a picture's `values` are [N, D] of them.

Source: "Differential Privacy in Reinforcement Learning" (Doulazmi, Odonnat), figure 4 and table 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.reporting.plots import figure


def draw_states(picture: Any, runs: Mapping[Any, Sequence[Any]], path: Path) -> None:
    """One box for every observation number; whiskers at 1.5 interquartile ranges, points beyond left out."""
    names = picture.facts["names"]
    with figure(path, 1, vector=True) as (axes,):
        axes.boxplot(picture.facts["values"], tick_labels=names, showfliers=False)
        axes.set_title(picture.facts["data"])
        axes.set_ylabel("state, in its own unit")


def state_table(
    picture: Any, runs: Mapping[Any, Sequence[Any]]
) -> tuple[list[str], list[list[str]]]:
    """Quartiles and the range of every observation number, beside the paper's interquartile range."""
    values = np.asarray(picture.facts["values"])
    lines = []
    for name, column, paper in zip(
        picture.facts["names"], values.T, picture.facts["paper"], strict=True
    ):
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
