"""What a run is judged by: the return of its policy, or the error of its value. Plain data, reports use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """One way to judge what a run released.

    Attributes:
        name: key of its block in `summary.json`.
        metric: its name in `metrics.jsonl`.
        spread: name of the half width of its 95 % interval within one evaluation; None: it has none.
        direction: up | down, which way is better.
        label: for axes and tables.
        form: of a number, for people.
    """

    name: str
    metric: str
    spread: str | None
    direction: str
    label: str
    form: str

    def show(self, value: float) -> str:
        """The number for people."""
        return format(value, self.form)


RETURN = Measure(
    "return", "eval/return_mean", "eval/return_ci95", "up", "mean undiscounted return", ".1f"
)
MSPBE = Measure("mspbe", "eval/mspbe", None, "down", "MSPBE", ".3g")
MEASURES = {measure.name: measure for measure in (RETURN, MSPBE)}


def measure_of(summary: dict[str, Any]) -> Measure:
    """Of a run, by its `summary.json`; those of before there were several say nothing."""
    return MEASURES.get(str(summary.get("measure", RETURN.name)), RETURN)
