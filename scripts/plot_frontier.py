"""Draw what the item outputs/paper/dppg/frontier predicts, a figure for each of its environments.

    python scripts/plot_frontier.py

Predictions are those of `privrl plan` (`privrl_bench/reporting/frontier.py`).
"""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

from privrl_bench.config.compose import compose
from privrl_bench.reporting.frontier import ITEM, points
from privrl_bench.reporting.frontier_figure import draw_frontier
from privrl_bench.reporting.results_store import RUNS_FILE
from privrl_bench.reporting.runs import flatten

STORE = Path(__file__).resolve().parents[1] / "outputs" / "paper"


def environments(folder: Path) -> list[str]:
    """Of the runs of an item, in alphabetical order."""
    with (folder / RUNS_FILE).open(encoding="utf-8", newline="") as file:
        return sorted({row["env"] for row in csv.DictReader(file)})


def main() -> None:
    """Draw the figures."""
    from results_blocks.store import TASKS

    folder = STORE / "dppg" / ITEM
    for env in environments(folder):
        settings = dict(flatten(asdict(compose(["algo=dppg", f"env={env}"]))))
        measured = points("dppg", env, settings, STORE)
        without = [sum(one.values) / len(one.values) for one in measured if one.noise == 0]
        draw_frontier(measured, TASKS[env], max(without, default=None), folder / f"{env}.svg")
        print(folder / f"{env}.svg")


if __name__ == "__main__":
    main()
