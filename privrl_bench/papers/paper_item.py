"""What every table and figure of a paper can do, and tables: a paper's numbers beside ours."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting import page
from privrl_bench.reporting.runs import Run, Runs, nested, number
from privrl_bench.reporting.style import LineMark
from privrl_bench.reporting.table_writer import aligned, short, write_table

AnyRun = TypeVar("AnyRun")


@dataclass(frozen=True)
class Item(ABC):
    """A table or figure of a paper. A setting is whatever `Runs` is keyed by."""

    title: str

    @abstractmethod
    def settings(self) -> list[Any]:
        """Every setting whose runs the item shows, once."""

    @abstractmethod
    def replaced(self, change: Callable[[Any], Any]) -> Item:
        """The item with every setting replaced by `change(setting)`."""

    @abstractmethod
    def write(self, out: Path, runs: Runs, trivial: Mapping[str, str]) -> list[str]:
        """Write the item's files into `out`.

        Args:
            out: An existing folder.
            runs: The finished runs of each setting.
            trivial: Environment -> return of a policy that does not learn, as text.

        Returns:
            The parts of the item's page.
        """

    def environments(self) -> list[str]:
        """Environments in which a policy that does not learn is shown beside the runs."""
        return []

    def complete(self, runs: Runs) -> bool:
        """Whether the runs hold everything that the item's files are made from."""
        return True

    def datasets(self) -> list[list[str]]:
        """Arguments of `privrl collect` for each dataset that the item itself shows."""
        return []


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

    def mark(self, runs: Mapping[Any, Sequence[Any]]) -> LineMark:
        """Method, epsilon (if the points have the same, rounded) and status of a line with runs."""
        found = self.runs(runs)
        every = {
            float(shown_epsilon(run.epsilon, 1)) for run in found if not math.isnan(run.epsilon)
        }
        epsilon = max(run.epsilon for run in found) if len(every) == 1 else math.nan
        private = "formal" if self.formal else "heuristic"
        return LineMark(found[0].algo, epsilon, "none" if every == {math.inf} else private)


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    label: str
    lines: list[Line]


def write_item(item: Item, paper: str, out: Path, runs: Runs, trivial: Mapping[str, str]) -> Path:
    """Write the files of one table or figure into `out`, creating it. Returns the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    parts = item.write(out, runs, trivial)
    every: list[Run] = [run for some in runs.values() for run in some]
    page.write_page(out / "index.html", f"{item.title}. {paper}", parts, every)
    return out / "index.html"


def shared(values: Sequence[str]) -> str:
    """Distinct values in order, joined by a slash."""
    return "/".join(sorted(set(values)))


# --- tables

HEAD = (
    *("env", "method", "paper", "as the paper does it", "formal", "trivial", "seeds", "steps"),
    *("epsilon, paper-like", "epsilon, formal", "epsilon by the paper's formula", "status"),
    "verdict",
)
NOT_COMPARABLE = "not comparable"
NOTE = (
    "Returns: mean ± half width of the 95 % interval over seeds, final evaluations. "
    "Verdict: our mean as the paper does it (formal where there is no such run), against the paper's "
    "interval. epsilon: at the delta of the "
    "runs, for the unit that the guarantees name."
)


@dataclass(frozen=True)
class Cell:
    """One number of a table: the paper's (mean, half width), and the settings of our runs.

    Attributes:
        paper_like: Setting as in the paper; None for that of the formal runs.
        formal: Setting with a formal guarantee; None if there is none.
        comparable: Whether our runs answer the paper's number; not if they have other data.
    """

    env: str
    label: str
    paper: tuple[float, float] | None  # None: the paper has no value
    paper_like: Any
    formal: Any
    comparable: bool = True

    @property
    def judged_by(self) -> Any:
        """The setting that is compared with the paper's number."""
        return self.formal if self.paper_like is None else self.paper_like


@dataclass(frozen=True)
class PaperTable(Item):
    """A paper's table."""

    cells: list[Cell]

    def settings(self) -> list[Any]:
        """Settings of all cells, once."""
        both = [s for cell in self.cells for s in (cell.paper_like, cell.formal)]
        return list(dict.fromkeys(s for s in both if s is not None))

    def replaced(self, change: Callable[[Any], Any]) -> PaperTable:
        """The table with other settings."""

        def changed(setting: Any) -> Any:
            return None if setting is None else change(setting)

        return replace(
            self,
            cells=[
                replace(c, paper_like=changed(c.paper_like), formal=changed(c.formal))
                for c in self.cells
            ],
        )

    def environments(self) -> list[str]:
        """All environments of the table."""
        return sorted({cell.env for cell in self.cells})

    def write(self, out: Path, runs: Runs, trivial: Mapping[str, str]) -> list[str]:
        """Write and print the comparison."""
        head, lines = comparison(self, runs, trivial)
        text = f"# {self.title}\n\n{aligned(head, lines)}\n\n{NOTE}\n\n{verdict(self, runs)}\n"
        write_table(out, text, (head, lines))
        print(text)
        every = [run for some in runs.values() for run in some]
        return [
            page.paragraph(verdict(self, runs)),
            page.table(self.title, head, lines, NOTE),
            page.table("Guarantees", *guarantees(every)),
        ]


def comparison(
    table: PaperTable, runs: Runs, trivial: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """(head, lines): the paper's numbers, ours as in the paper, the formal ones, and a trivial policy's."""
    lines: list[list[str]] = []
    for cell in table.cells:
        ours, formal = runs.get(cell.paper_like, []), runs.get(cell.formal, [])
        printed = runs.get(cell.judged_by, [])
        formula = {number(run.summary.get("epsilon_paper")) for run in printed}
        lines.append(
            [
                cell.env,
                cell.label,
                f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}" if cell.paper else "-",
                mean_of(ours),
                mean_of(formal) if cell.formal else "",
                "" if lines and lines[-1][0] == cell.env else trivial.get(cell.env, ""),
                f"{len(ours)} / {len(formal)}" if cell.formal else str(len(ours)),
                f"{max(number(r.summary.get('steps')) for r in printed):,.0f}" if printed else "-",
                epsilon_of(ours),
                epsilon_of(formal) if cell.formal else "",
                shown_epsilon(max(formula, default=math.nan)),
                " / ".join(status_of(some) for some in (ours, formal) if some) or "-",
                judged(cell, printed),
            ]
        )
    return list(HEAD), lines


def judged(cell: Cell, runs: Sequence[Run]) -> str:
    """Inside | above | below the paper's interval, `no run`, or `-` where there is nothing to compare.

    `not comparable`: see `Cell`.
    """
    if not runs:
        return "no run"
    if not cell.comparable:
        return NOT_COMPARABLE
    mean = float(np.mean([run.final_value for run in runs]))
    if cell.paper is None or not np.isfinite([mean, *cell.paper]).all():
        return "-"
    low, high = cell.paper[0] - cell.paper[1], cell.paper[0] + cell.paper[1]
    return "below" if mean < low else "above" if mean > high else "inside"


def verdict(table: PaperTable, runs: Runs) -> str:
    """How many cells are inside, above and below the paper's interval, as a sentence."""
    found = [judged(cell, runs.get(cell.judged_by, [])) for cell in table.cells]
    names = ("inside", "above", "below", NOT_COMPARABLE, "no run")
    counts = {name: found.count(name) for name in names}
    shown = [f"{count} {name}" for name, count in counts.items() if count or name in names[:3]]
    return f"Of {sum(counts.values())} cells: {', '.join(shown)}."


def guarantees(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """(head, lines) of the distinct guarantees of the runs, with the number of runs of each."""
    seen: dict[tuple[str, ...], int] = {}
    for run in runs:
        terms = [
            str(nested(run.summary, "guarantee", name) or "?")
            for name in ("status", "unit", "notion", "adjacency")
        ]
        key = (
            terms[0],
            run.algo,
            run.env,
            "-" if run.z is None else f"{run.z:g}",
            shown_epsilon(run.epsilon),
            short(number(run.summary.get("delta"))),
            "; ".join(terms[1:]),
            ", ".join(run.caveats) or "-",
        )
        seen[key] = seen.get(key, 0) + 1
    head = ["status", "algo", "env", "z", "epsilon", "delta", "for whom", "outside epsilon", "runs"]
    return head, [[*key, str(count)] for key, count in seen.items()]


def mean_of(runs: Sequence[Run]) -> str:
    """Mean of the final values and the half width of its interval, `-` without a run."""
    if not runs:
        return "-"
    mean, half = mean_ci([run.final_value for run in runs])
    digits = 1 if abs(mean) >= 10 else 2  # mean logits of texts are small numbers
    return f"{mean:.{digits}f}" if math.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def epsilon_of(runs: Sequence[Run]) -> str:
    """The largest epsilon, `-` without a run."""
    return shown_epsilon(max(run.epsilon for run in runs)) if runs else "-"


def status_of(runs: Sequence[Run]) -> str:
    """Statuses of the guarantees."""
    return shared([run.guarantee_status for run in runs])
