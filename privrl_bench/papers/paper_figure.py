"""A paper's figure: panels of lines, each kind drawn and tabulated by functions of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrl_bench.papers import (
    analytic_figures,
    convergence,
    datasize,
    relations,
    run_figures,
    states,
)
from privrl_bench.papers.paper_item import Panels
from privrl_bench.papers.paper_table import guarantees
from privrl_bench.reporting import page
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import MOST_LINES
from privrl_bench.reporting.table_writer import aligned, write_table


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
    "swept": Kind(run_figures.draw_swept, run_figures.swept_table, within=False),
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
class PaperFigure(Panels):
    """A paper's figure; `kind` is a name in `KINDS`."""

    def complete(self, runs: Runs) -> bool:
        """Whether all runs have the evaluations that the figure shows."""
        every = [run for some in runs.values() for run in some]
        return not KINDS[self.kind].within or all(len(run.curve()[0]) for run in every)

    @property
    def small(self) -> bool:
        """Whether little of each run is kept, and no `runs.csv`."""
        return KINDS[self.kind].keep is not None

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

    def write(self, out: Path, runs: Runs, trivial: Mapping[str, str]) -> list[str]:
        """Draw `figure.png` and `figure.svg`, unless `not_drawn`, and write the numbers behind them."""
        kind, path, parts = KINDS[self.kind], out / "figure.png", list[str]()
        shown = kind.of(self, runs)
        if reason := self.not_drawn():
            print(reason)
            parts.append(page.paragraph(reason))
        else:
            kind.draw(self, shown, path)
            caption = self.facts.get("caption") or run_figures.caption(runs)
            parts.append(page.picture(self.title, path, caption))
        if kind.keep:
            kind.keep(self, shown, out)
        head, lines = kind.numbers(self, shown)
        if lines:
            write_table(out, self.table_text(head, lines), (head, lines))
            every = [run for some in runs.values() for run in some]
            parts.append(page.table("Numbers", head, lines))
            if every:
                parts.append(page.table("Guarantees", *guarantees(every)))
        return parts
