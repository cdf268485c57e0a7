"""A paper's figure: panels of lines, each kind drawn and tabulated by functions of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting import (
    analytic_figures,
    convergence,
    datasize,
    page,
    relations,
    run_figures,
    states,
    swept_figures,
)
from privrl_bench.reporting.paper_item import Item
from privrl_bench.reporting.paper_table import guarantees
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import MOST_LINES, Mark
from privrl_bench.reporting.table_writer import aligned, write_table

AnyRun = TypeVar("AnyRun")


@dataclass(frozen=True)
class Line:
    """One line of a figure. Several settings are its points. `paper`: its mean and half width there."""

    label: str
    formal: bool
    settings: list[Any]
    paper: tuple[float, float] | None = None

    def runs(self, runs: Mapping[Any, Sequence[AnyRun]]) -> list[AnyRun]:
        """Finished runs of all settings, or what is kept of them."""
        return [run for setting in self.settings for run in runs.get(setting, [])]

    def mark(self, runs: Mapping[Any, Sequence[Any]]) -> Mark:
        """Method, epsilon (if the points have the same, rounded) and status of a line with runs."""
        found = self.runs(runs)
        every = {
            float(shown_epsilon(run.epsilon, 1)) for run in found if not math.isnan(run.epsilon)
        }
        epsilon = max(run.epsilon for run in found) if len(every) == 1 else math.nan
        private = "formal" if self.formal else "heuristic"
        return Mark(found[0].algo, epsilon, "none" if every == {math.inf} else private)


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    label: str
    lines: list[Line]


def _all(picture: Any, runs: Runs) -> Runs:
    return runs


@dataclass(frozen=True)
class Kind:
    """How a figure is drawn, and the numbers behind it.

    Attributes:
        draw: Draws the figure to a path.
        numbers: Returns (head, lines) of its table.
        within: Whether it shows evaluations within runs.
        keep: Writes what is kept of each run in place of `runs.csv`; None if that is kept.
        of: What the other functions get of the runs of each setting.
    """

    draw: Callable[[Any, Any, Path], None]
    numbers: Callable[[Any, Any], tuple[list[str], list[list[str]]]] = run_figures.points
    within: bool = True
    keep: Callable[[Any, Any, Path], None] | None = None
    of: Callable[[Any, Runs], Any] = _all


KINDS = {
    "curves": Kind(run_figures.draw_curves),
    "regret": Kind(run_figures.draw_regret),
    "epsilon": Kind(run_figures.draw_epsilon, within=False),
    "swept": Kind(swept_figures.draw_swept, swept_figures.swept_table, within=False),
    "spent": Kind(run_figures.draw_spent),
    "rounds": Kind(analytic_figures.draw_rounds, analytic_figures.rounds_table, within=False),
    "accounting": Kind(analytic_figures.draw_accounting, within=False),
    "relations": Kind(relations.draw_signs, relations.sign_table, within=False),
    "riverswim": Kind(analytic_figures.draw_riverswim, within=False),
    "held": Kind(
        convergence.draw_held, convergence.table, keep=convergence.keep, of=convergence.kept
    ),
    "boxes": Kind(
        convergence.draw_boxes, convergence.table, keep=convergence.keep, of=convergence.kept
    ),
    "states": Kind(states.draw_states, states.state_table, False, states.keep_ranges),
    "datasize": Kind(datasize.draw_errors, datasize.error_table),
}


@dataclass(frozen=True)
class Picture(Item):
    """A paper's figure.

    Attributes:
        kind: A name in `KINDS`.
        facts: Numbers of the figure that no run has.
    """

    kind: str
    panels: list[Panel] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> list[Any]:
        """Settings of all lines, once."""
        return list(
            dict.fromkeys(s for p in self.panels for line in p.lines for s in line.settings)
        )

    def replaced(self, change: Callable[[Any], Any]) -> Picture:
        """The figure with other settings."""

        def changed(line: Line) -> Line:
            return replace(line, settings=[change(setting) for setting in line.settings])

        panels = [replace(panel, lines=list(map(changed, panel.lines))) for panel in self.panels]
        return replace(self, panels=panels)

    def complete(self, runs: Runs) -> bool:
        """Whether all runs have the evaluations that the figure shows."""
        every = [run for some in runs.values() for run in some]
        return not KINDS[self.kind].within or all(len(run.curve()[0]) for run in every)

    @property
    def small(self) -> bool:
        """Whether little of each run is kept, and no `runs.csv`."""
        return KINDS[self.kind].keep is not None

    def datasets(self) -> list[list[str]]:
        """The dataset whose observations are drawn, if it is one of those."""
        return [self.facts["collect"]] if "collect" in self.facts else []

    def not_drawn(self) -> str:
        """Why there is no figure: a panel has too many lines to be read; empty if there is one."""
        many = [panel for panel in self.panels if len(panel.lines) > MOST_LINES]
        return "".join(
            f"No figure: the panel {panel.label} has {len(panel.lines)} lines, at most {MOST_LINES} can be "
            "read; split it."
            for panel in many[:1]
        )

    def table_text(self, head: list[str], lines: list[list[str]]) -> str:
        """Text of `table.md`."""
        return f"# {self.title}\n\n{aligned(head, lines)}\n"

    def write(self, out: Path, runs: Runs, trivial: Mapping[str, str]) -> list[page.Part]:
        """Draw `figure.png` and `figure.svg`, unless `not_drawn`, and write the numbers behind them."""
        kind, path, parts = KINDS[self.kind], out / "figure.png", list[page.Part]()
        shown = kind.of(self, runs)
        if reason := self.not_drawn():
            print(reason)
            parts.append(page.Paragraph(reason))
        else:
            kind.draw(self, shown, path)
            caption = self.facts.get("caption") or run_figures.caption(runs)
            parts.append(page.Picture(self.title, path, caption))
        if kind.keep:
            kind.keep(self, shown, out)
        head, lines = kind.numbers(self, shown)
        if lines:
            write_table(out, self.table_text(head, lines), (head, lines))
            every = [run for some in runs.values() for run in some]
            parts.append(page.Table("Numbers", head, lines))
            if every:
                parts.append(page.Table("Guarantees", *guarantees(every)))
        return parts
