"""A paper's figure: panels of lines, each kind drawn and tabulated by functions of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from privrl_bench.papers import (
    analytic_figures,
    convergence,
    datasize,
    run_figures,
    states,
)
from privrl_bench.papers.paper_item import Item, Panel, guarantees
from privrl_bench.reporting import page
from privrl_bench.reporting.runs import Runs
from privrl_bench.reporting.style import MOST_LINES
from privrl_bench.reporting.table_writer import aligned, parsed, write_table


def _all(picture: Any, runs: Runs) -> Runs:
    return runs


@dataclass(frozen=True)
class Kind:
    """How a figure is drawn, and the numbers behind it.

    Attributes:
        draw: Draws the figure from runs, to a path; None: it is drawn from its table.
        numbers: Returns (head, lines) of its table.
        within: Whether it shows evaluations within runs.
        keep: Writes what is kept of each run in place of `runs.csv`; None if that is kept.
        of: What the other functions get of the runs of each setting.
        of_table: Draws it from the lines of its table, where runs were not kept; None: it cannot be.
    """

    draw: Callable[[Any, Any, Path], None] | None
    numbers: Callable[[Any, Any], tuple[list[str], list[list[str]]]] = run_figures.points
    within: bool = True
    keep: Callable[[Any, Any, Path], None] | None = None
    of: Callable[[Any, Runs], Any] = _all
    of_table: Callable[[Any, Sequence[Mapping[str, str]], Path], None] | None = None


_SOLVED: dict[str, Any] = {"keep": convergence.keep, "of": convergence.kept}
KINDS = {
    "curves": Kind(run_figures.draw_curves),
    "regret": Kind(run_figures.draw_regret, of_table=run_figures.draw_final_regret),
    "epsilon": Kind(run_figures.draw_epsilon, within=False),
    "swept": Kind(run_figures.draw_swept, run_figures.swept_table, within=False),
    "spent": Kind(run_figures.draw_spent),
    "rounds": Kind(
        None, analytic_figures.rounds_table, within=False, of_table=analytic_figures.draw_rounds
    ),
    "accounting": Kind(analytic_figures.draw_accounting, within=False),
    "relations": Kind(
        None, analytic_figures.sign_table, within=False, of_table=analytic_figures.draw_signs
    ),
    "riverswim": Kind(analytic_figures.draw_riverswim, within=False),
    "held": Kind(convergence.draw_held, convergence.table, **_SOLVED),
    "boxes": Kind(convergence.draw_boxes, convergence.table, **_SOLVED),
    "states": Kind(states.draw_states, states.state_table, False, states.keep_ranges),
    "datasize": Kind(None, datasize.error_table, of_table=datasize.draw_errors),
}


@dataclass(frozen=True)
class PaperFigure(Item):
    """A paper's figure.

    Attributes:
        kind: How it is drawn: a name in `KINDS`.
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

    def replaced(self, change: Callable[[Any], Any]) -> Self:
        """The figure with other settings."""
        panels = [
            replace(p, lines=[replace(x, settings=list(map(change, x.settings))) for x in p.lines])
            for p in self.panels
        ]
        return replace(self, panels=panels)

    def datasets(self) -> list[list[str]]:
        """The dataset whose observations are drawn, if it is one of those."""
        return [self.facts["collect"]] if "collect" in self.facts else []

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

    def draw_from_table(self, table: str, out: Path) -> bool:
        """Draw `figure.svg` into `out` from the text of `table.md`. Returns whether the kind can be."""
        draw = KINDS[self.kind].of_table
        if draw is not None:
            draw(self, parsed(table), out / "figure.png")
            (out / "figure.png").unlink()  # the SVG is the smaller one
        return draw is not None

    def write(self, out: Path, runs: Runs, trivial: Mapping[str, str]) -> list[str]:
        """Draw `figure.png` and `figure.svg`, unless `not_drawn`, and write the numbers behind them."""
        kind, path, parts = KINDS[self.kind], out / "figure.png", list[str]()
        shown = kind.of(self, runs)
        head, lines = kind.numbers(self, shown)
        if reason := self.not_drawn():
            print(reason)
            parts.append(page.paragraph(reason))
        else:
            if kind.draw is not None:
                kind.draw(self, shown, path)
            elif kind.of_table is not None:
                kind.of_table(self, parsed(aligned(head, lines)), path)
            caption = self.facts.get("caption") or run_figures.caption(runs)
            parts.append(page.picture(self.title, path, caption))
        if kind.keep:
            kind.keep(self, shown, out)
        if lines:
            write_table(out, self.table_text(head, lines), (head, lines))
            every = [run for some in runs.values() for run in some]
            parts.append(page.table("Numbers", head, lines))
            if every:
                parts.append(page.table("Guarantees", *guarantees(every)))
        return parts
