"""DP-LSTD beside GPOPE: errors as shares of that of theta = 0, which uses no user's data."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from privrl_bench.papers.pages.kept_tables import committed, error_of
from privrl_bench.papers.pages.store import block, finals, stored, without_repeats
from privrl_bench.reporting.runs import Run, nested
from privrl_bench.reporting.table_writer import compact

ITEM = "gpope/dp_lstd"
PANELS = {  # task, evaluated policy -> name, item and panel of the figure with GPOPE's errors
    ("chain", None): ("chain", "gpope/fig1", "chain, epsilon {epsilon}"),
    ("mountain_car", None): ("mountain car, on-policy", "gpope/fig3", "on-policy"),
    ("mountain_car", "uniform"): (
        "mountain car, target uniform",
        "gpope/fig3",
        "off-policy, target uniform",
    ),
    ("hiv", "hiv:greedy"): ("HIV", "gpope/fig4", "HIV"),
}
ZERO = "theta = 0 (does nothing)"


def _given(run: Run, key: str) -> str | None:
    """The value of a key on the command line."""
    return dict(word.split("=", 1) for word in run.overrides).get(key)


def _task(run: Run) -> tuple[str, str | None]:
    return run.env, _given(run, "algo.target")


def _order(run: Run) -> tuple[int, float, int]:
    users = int(nested(run.config, "privacy", "population"))
    return list(PANELS).index(_task(run)), -round(run.epsilon, 3), users


@block(ITEM)
def _dp_lstd() -> str:
    runs = stored(ITEM)
    zeros = {_task(run): run.final_value for run in runs if run.algo == "gpope"}
    found = sorted((run for run in runs if run.algo == "dp_lstd"), key=_order)
    lines = []
    for (at, _, users), group in groupby(found, key=_order):
        same, task = list(group), list(PANELS)[at]
        shares = np.array(finals(same)) / zeros[task]
        epsilon = str(_given(same[0], "privacy.epsilon"))
        label, item, panel = PANELS[task]
        error = f"{shares.mean():.3g} ± {shares.std(ddof=1):.2g}"
        lines.append(
            [
                label,
                epsilon,
                f"{users:,}",
                f"{error} ({len(same)})",
                _gpope(item, panel.replace("{epsilon}", epsilon), epsilon, users),
            ]
        )
    head = ["task", "epsilon", "n", "DP-LSTD (trials)", "GPOPE (trials; rounds)"]
    return compact(head, without_repeats(lines))


def _gpope(item: str, panel: str, epsilon: str, users: int) -> str:
    """GPOPE's error in the paper's figure, as a share of that of theta = 0."""
    lines = {line["line"]: line for line in committed(item, panel=panel) if line["n"] == str(users)}
    zero = next(line for line in committed(item, panel=panel) if line["line"] == ZERO)
    line = lines[f"GPOPE, epsilon {epsilon}"]
    mean, spread = (
        float(x) / float(error_of(zero).split()[0]) for x in error_of(line).split(" ± ")
    )
    return f"{mean:.3g} ± {spread:.2g} ({line['trials']}; {line['rounds']})"
