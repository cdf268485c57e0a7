"""What a run is judged by: the return of its policy, or the error of its value. Plain data, reports use it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Objective:
    """The number that a run is judged by.

    Attributes:
        name: key of its block in `summary.json`.
        metric: its name in `metrics.jsonl`.
        spread: name of the half width of its 95 % t interval within one evaluation; None: none.
        interval: names of the ends of its interval within one evaluation; None: none.
        interval_name: what that is, a format of `episodes`.
        beside: metrics that are printed beside it: name in `summary.json`, metric, words on the screen.
        direction: up | down, which way is better.
        unit: of the number.
        label: for axes and tables.
        form: format of a printed number.
        note: what a mean over runs is, for the note below a table.
        definition: what the number is, a format of `after`, `episodes` and `policy`.
    """

    name: str
    metric: str
    spread: str | None
    interval: tuple[str, str] | None
    direction: str
    unit: str
    label: str
    form: str
    note: str
    definition: str
    interval_name: str = "95 % interval over {episodes} episodes"
    beside: tuple[tuple[str, str, str], ...] = ()

    def show(self, value: float) -> str:
        """The number as it is printed."""
        return format(value, self.form)

    def interval_text(self, low: float | None, high: float | None, more: str = "") -> str:
        """An interval as it is printed after its mean: ` (low to high)`; empty if there is none.

        `more`: what follows within the brackets.
        """
        if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
            return ""
        return f" ({self.show(low)} to {self.show(high)}{more})"


RETURN = Objective(
    name="return",
    metric="eval/return_mean",
    spread="eval/return_ci95",
    interval=("eval/return_low", "eval/return_high"),
    direction="up",
    unit="reward",
    label="mean undiscounted return",
    form=".1f",
    note="Return: mean over seeds of the undiscounted return of each run's final evaluation",
    definition="mean undiscounted return of {episodes} fresh {policy} evaluation episodes of the policy "
    "{after}; low and high are the ends of the 95 % bootstrap interval over episodes, ci95 is the half width "
    "of the t interval",
)
MSPBE = Objective(
    name="mspbe",
    metric="eval/mspbe",
    spread=None,
    interval=None,
    direction="down",
    unit="squared value",
    label="MSPBE",
    form=".3g",
    note="MSPBE: mean over seeds of the mean squared projected Bellman error of each run's final value",
    definition="mean squared projected Bellman error of the value {after}, of the states that data.policy "
    "visits; see docs/algorithms/gpope.md",
    beside=(("value", "eval/value", "value"),),
)
AGREEMENT = Objective(
    name="agreement",
    metric="eval/agreement",
    spread=None,
    interval=None,
    direction="up",
    unit="share",
    label="agreement",
    form=".3f",
    note="Agreement: mean over seeds of the share of public users' actions that the final policy takes",
    definition="share of public users' steps in which the greedy policy {after} takes the recorded action; "
    "of continuous actions 1 - the mean distance in halves of their range",
)
VALUE = Objective(
    name="value",
    metric="eval/value",
    spread=None,
    interval=("eval/value_low", "eval/value_high"),
    direction="up",
    unit="reward",
    label="estimated value",
    form=".4g",
    note="Value: mean over seeds of the released estimate of the return of a policy, discounted by algo.gamma",
    definition="estimated discounted return of the evaluated policy {after}, by importance sampling or "
    "fitted Q evaluation; low and high are the ends of a 90 % interval for the mean of returns that are "
    "clipped to the public range, over users and noise",
    interval_name="90 % interval",
    beside=(
        ("error", "eval/value_error", "error by noise and chance, no interval"),
        ("mean ratio", "eval/ratio", "mean ratio"),
        ("clipped", "eval/clipped", "clipped (noised)"),
    ),
)
OBJECTIVES = {one.name: one for one in (RETURN, MSPBE, AGREEMENT, VALUE)}


def objective_of(summary: dict[str, Any]) -> Objective:
    """The objective of a run, by its `summary.json`; old ones without a name have the return."""
    return OBJECTIVES.get(str(summary.get("measure", RETURN.name)), RETURN)
