"""What a sweep prints at its end: a table over seeds, the jobs that failed, and the next command."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privrl_bench.cli.console import print_table
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.run.crash import one_line
from privrl_bench.run.sweep import Outcome

STATUSES = ("done", "skipped", "planned", "interrupted", "failed")
DONE = ("done", "skipped")  # a skipped job was done before
Settings = Mapping[str, str]


@dataclass
class _Seeds:
    """Outcomes that differ in the seed only."""

    settings: Settings
    outcomes: list[Outcome] = field(default_factory=list)

    def values(self) -> list[float]:
        """Finite results."""
        found = [_mean(outcome) for outcome in self.outcomes if outcome.status in DONE]
        return [x for x in found if isinstance(x, float | int) and math.isfinite(x)]


def show(outcomes: Sequence[Outcome], columns: Mapping[str, Sequence[str]]) -> None:
    """Print how a sweep ended.

    Args:
        outcomes: of all jobs.
        columns: the values of each key, as the command gave them; job k has combination k.
    """
    swept = [key for key, words in columns.items() if key != "seed" and len(words) > 1]
    groups: dict[tuple[str, ...], _Seeds] = {}
    for outcome in outcomes:
        settings = _settings(columns, swept, outcome.number)
        key = tuple(settings.values())
        groups.setdefault(key, _Seeds(settings)).outcomes.append(outcome)
    print()
    if any(outcome.summary for outcome in outcomes):
        _print_groups(list(groups.values()), swept)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        rows = [(_short(one.folder), one_line(one.reason)) for one in failed]
        head = ("failed", "reason")
        print_table(head, rows, ["red"] * len(rows))
    done = [outcome.folder for outcome in outcomes if outcome.status in DONE]
    if done:
        print(f"report: privrl report {shlex.quote(_short(_common(done)))}")
    print(last_line(outcomes), flush=True)


def last_line(outcomes: Sequence[Outcome]) -> str:
    """Return the number of jobs by status.

    >>> last_line([Outcome("done"), Outcome("interrupted"), Outcome("interrupted")])
    '3 jobs: 1 done, 2 interrupted; rerun the same command to resume'
    """
    counts = {s: sum(one.status == s for one in outcomes) for s in STATUSES}
    text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    more = "; rerun the same command to resume" if counts["interrupted"] else ""
    return f"{len(outcomes)} jobs: {text}{more}"


def _print_groups(groups: Sequence[_Seeds], swept: Sequence[str]) -> None:
    """A row for each combination of the swept keys, the seed apart."""
    from privrl_bench.functional.statistics import FEWEST
    from privrl_bench.reporting.tables import mean_text

    rows, styles = [], []
    measures = [objective_of(group.outcomes[0].summary) for group in groups]
    names = "/".join(dict.fromkeys(measure.name for measure in measures))
    for group, measure in zip(groups, measures, strict=True):
        values = group.values()
        mean = mean_text(measure, values) if values else "-"
        spent = [_number(outcome.summary.get("epsilon")) for outcome in group.outcomes]
        known = [epsilon for epsilon in spent if not math.isnan(epsilon)]
        count = f"{len(values)} of {len(group.outcomes)}"
        epsilon = shown_epsilon(max(known)) if known else "-"
        rows.append((*group.settings.values(), count, mean, epsilon))
        styles.append("" if len(values) == len(group.outcomes) else "yellow")
    head = [key.removeprefix("privacy.") for key in swept]
    if any(len(group.values()) >= FEWEST for group in groups):
        names += " (95 % interval over runs)"
    print_table((*head, "runs", names, "epsilon"), rows, styles)


def _settings(columns: Mapping[str, Sequence[str]], swept: Sequence[str], number: int) -> Settings:
    """Return the values of the swept keys in combination `number`; the last key varies fastest."""
    found = {}
    for key in reversed(list(columns)):
        number, at = divmod(number, len(columns[key]))
        found[key] = columns[key][at].partition("=")[2]
    return {key: found[key] for key in swept}


def _mean(outcome: Outcome) -> Any:
    return (outcome.summary.get(objective_of(outcome.summary).name) or {}).get("mean")


def _number(value: Any) -> float:
    """A number of a summary, which may be the text "inf"; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _common(folders: Sequence[str]) -> str:
    """Return the folder that has all of them, below no other run."""
    if len(set(folders)) == 1:
        return folders[0]
    return os.path.commonpath(folders)


def _short(folder: str) -> str:
    """Return the folder relative to the working directory, if it is below it."""
    path, here = Path(folder), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else folder
