"""Cells of DPPG's table 1 that are below the paper's interval: the paper's runs with one factor changed."""

from __future__ import annotations

from privrl_bench.papers.pages.dppg import printed
from privrl_bench.papers.pages.store import TASKS, block, finals, spread, stored, without_repeats
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.table_writer import compact

ITEM = "dppg/causes"
FACTORS = {  # recorded words beside those of `+paper=dppg` -> what they change
    "": "as the paper does it, here",
    "env.reward_scaling=none": "raw rewards",
    "algo.time_limit=terminate": "time limits as terminations",
    "algo.advantage_scope=minibatch": "advantages normalised per minibatch",
    "algo.local_adam=seeded": "local Adam seeded from the last release",
}
_ALWAYS = {"algo=dppg", "paper=dppg", "+paper=dppg"}


def factor(run: Run) -> str:
    """The words that a run has beside those of the paper's setting, in the order of the command."""
    words = [word for word in run.overrides if word not in _ALWAYS]
    kept = [
        word for word in words if not word.startswith(("env=", "privacy.z=", "seed=", "rounds="))
    ]
    return " ".join(kept)


@block(ITEM)
def _causes() -> str:
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in stored(ITEM):
        groups.setdefault((run.env, f"{run.z:g}", factor(run)), []).append(run)
    order = list(FACTORS)
    lines = []
    for (env, z, words), runs in sorted(
        groups.items(), key=lambda pair: (*pair[0][:2], order.index(pair[0][2]))
    ):
        values, training = finals(runs), [run.training_return for run in runs]
        cell = f"{TASKS[env]}, z = {z} (paper: {printed(env, f'DPPG z = {z}')})"
        extremes = [f"{min(values):.1f}", f"{max(values):.1f}"]
        line = [cell, FACTORS[words], str(len(runs)), spread(values), *extremes]
        lines.append([*line, spread(training)])
    head = ["cell", "runs", "seeds", "final evaluation ± 95 % interval over seeds", "min", "max"]
    head.append("training episodes, last tenth of the run")
    return compact(head, without_repeats(lines))
