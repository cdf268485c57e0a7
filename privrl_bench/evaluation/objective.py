"""What a run is judged by: the return of its policy, or the error of its value. Plain data, reports use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Objective:
    """The number that a run is judged by.

    Attributes:
        name: key of its block in `summary.json`.
        metric: its name in `metrics.jsonl`.
        spread: name of the half width of its 95 % interval within one evaluation; None: none.
        direction: up | down, which way is better.
        unit: of the number.
        label: for axes and tables.
        form: format of a printed number.
        definition: what the number is, a format of `after`, `episodes` and `policy`.
    """

    name: str
    metric: str
    spread: str | None
    direction: str
    unit: str
    label: str
    form: str
    definition: str

    def show(self, value: float) -> str:
        """The number as it is printed."""
        return format(value, self.form)


RETURN = Objective(
    name="return",
    metric="eval/return_mean",
    spread="eval/return_ci95",
    direction="up",
    unit="reward",
    label="mean undiscounted return",
    form=".1f",
    definition="mean undiscounted return of {episodes} fresh {policy} evaluation episodes of the policy "
    "{after}; ci95 is the half width of the t interval over episodes",
)
MSPBE = Objective(
    name="mspbe",
    metric="eval/mspbe",
    spread=None,
    direction="down",
    unit="squared value",
    label="MSPBE",
    form=".3g",
    definition="mean squared projected Bellman error of the value {after}, of the states that data.policy "
    "visits; see docs/algorithms/gpope.md",
)
OBJECTIVES = {objective.name: objective for objective in (RETURN, MSPBE)}


def objective_of(summary: dict[str, Any]) -> Objective:
    """The objective of a run, by its `summary.json`; old ones without a name have the return."""
    return OBJECTIVES.get(str(summary.get("measure", RETURN.name)), RETURN)
