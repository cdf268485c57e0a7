"""Draw what the measured runs predict, a figure for each environment, in outputs/paper/dppg/frontier.

    python scripts/plot_frontier.py

Predictions are those of `privrl plan` (`privrl_bench/reporting/frontier.py`).
"""

from __future__ import annotations

from statistics import fmean

from privrl_bench.reporting.frontier_figure import draw_frontier


def main() -> None:
    """Draw the figures."""
    from results_blocks.frontier import ITEM, environments, measured
    from results_blocks.store import STORE, TASKS

    for env in environments():
        without = [fmean(one.values) for one in measured(env) if one.noise == 0]
        path = STORE / ITEM / f"{env}.svg"
        draw_frontier(measured(env), TASKS[env], max(without, default=None), path)
        print(path)


if __name__ == "__main__":
    main()
