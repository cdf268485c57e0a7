"""What every table and figure of a paper can do, and the files that are written for it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting import page
from privrl_bench.reporting.runs import Run, Runs
from privrl_bench.reporting.style import LineMark

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
