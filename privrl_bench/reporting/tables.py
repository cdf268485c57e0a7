"""Tables over seeds. Runs that differ in the seed only are one row."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.evaluation.objective import RETURN, Objective
from privrl_bench.functional.statistics import (
    FEWEST,
    interval_name,
    iqm_ci,
    mean_ci,
    shown_interval,
)
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.runs import Run, differing, nested, number, usable
from privrl_bench.reporting.table_writer import ABSENT, aligned, short, write_table

# Settings that have a column of their own.
_OWN_COLUMN = ("algo.name", "env.name", "env.id", "env.domain", "env.task", "privacy.z")

HEADER = (
    "algo",
    "env",
    "z",
    "variant",
    "seeds",
    "return",
    "low",
    "high",
    "interval",
    "min",
    "max",
    "median",
    "iqm",
    "iqm_low",
    "iqm_high",
    "epsilon",
    "delta",
    "epsilon_paper",
    "guarantee",
    "unit",
    "notion",
    "adjacency",
    "caveats",
    "steps",
    "steps_per_second",
)


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed only, one per seed, in order of seeds."""

    algo: str
    env: str
    z: float | None
    variant: str  # the settings in which groups of this algorithm and environment differ
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """Short name for legends, without the environment."""
        parts = [self.algo]
        if self.z is not None:
            parts.append(f"z = {self.z:g}")
        if self.variant:
            parts.append(self.variant)
        return ", ".join(parts)


@dataclass(frozen=True)
class GuaranteeTerms:
    """Unit, notion and adjacency of a guarantee, and the names of its caveats."""

    unit: str
    notion: str
    adjacency: str
    caveats: str

    def describe(self) -> str:
        """One sentence part for the legend of a table."""
        outside = f"; outside epsilon: {self.caveats}" if self.caveats else ""
        return f"unit: {self.unit}; notion {self.notion}; adjacency {self.adjacency}{outside}"


@dataclass(frozen=True)
class Row:
    """One line of the table: final values of `measure` over seeds."""

    algo: str
    env: str
    z: float | None
    variant: str
    seeds: int
    return_mean: float
    return_ci95: float  # half width of the t interval over seeds, nan for one seed
    return_interval: tuple[float, float]  # see `shown_interval`; nan for one seed
    return_min: float
    return_max: float
    return_median: float
    return_iqm: tuple[float, float, float]  # interquartile mean, ends of its bootstrap interval
    epsilon: float  # the largest of the group
    delta: float
    epsilon_paper: float  # nan where the paper's formula does not apply
    guarantee: str
    terms: GuaranteeTerms
    steps: int
    steps_per_second: float
    measure: Objective = RETURN


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group by all settings except the seed; of runs with the same seed the last by path counts.

    Order: environment, algorithm, then decreasing noise with non-private runs last.
    """
    by_key: dict[tuple[Any, ...], dict[Any, Run]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        key = (run.env, run.algo, json.dumps(run.settings(), sort_keys=True, default=str))
        seed = run.seed if run.seed is not None else str(run.folder)
        by_key.setdefault(key, {})[seed] = run
    members = [list(by_seed.values()) for by_seed in by_key.values()]
    firsts = [group[0] for group in members]
    groups = [
        Group(
            algo=first.algo,
            env=first.env,
            z=first.z,
            variant=_variant(first, keys),
            runs=tuple(sorted(group, key=lambda run: str(run.seed).zfill(12))),
        )
        for group, first, keys in zip(members, firsts, differing(firsts), strict=True)
    ]
    return sorted(groups, key=_order)


def summarise(runs: Sequence[Run]) -> list[Row]:
    """One row per group of finished runs; others are left out (see `left_out`)."""
    return [_row(group) for group in group_runs(usable(runs))]


def left_out(runs: Sequence[Run]) -> list[str]:
    """One line for each run that no row counts, with the reason, and for unreadable files."""
    counted = {id(run) for group in group_runs(usable(runs)) for run in group.runs}
    lines = []
    for run in runs:
        reasons = list(run.problems)
        if id(run) not in counted:
            if run.state != "done":
                reason = str(run.status.get("reason") or "")
                reasons.insert(0, f"{run.state} ({reason})" if reason else run.state)
            elif not math.isfinite(run.final_value):
                reasons.insert(0, "no final return")
            else:
                reasons.insert(0, f"another run has the same settings and seed {run.seed}")
        if reasons:
            lines.append(f"{run.folder}: {'; '.join(reasons)}")
    return lines


def cells(rows: Sequence[Row], half_width: bool = False) -> tuple[list[str], list[list[str]]]:
    """(head, lines) of the rounded table; guarantees are numbered as in `legend`.

    `half_width`: means with the half width of the t interval, as papers and the committed tables have them.
    """
    with_variant = any(row.variant for row in rows)
    kinds = list(dict.fromkeys(row.terms for row in rows))
    names = "/".join(dict.fromkeys(row.measure.name for row in rows)) or RETURN.name
    if half_width:
        names += " (mean ± 95 % CI)"
    elif any(row.seeds >= FEWEST for row in rows):
        names += " (95 % interval)"
    head = ["algo", "env", "z", "seeds", names, "min", "max", "IQM (95 % CI)"]
    head += ["epsilon", "delta", "epsilon (paper)", "guarantee", "steps", "steps/s"]
    lines = [
        [
            row.algo,
            row.env,
            ABSENT if row.z is None else f"{row.z:g}",
            str(row.seeds),
            f"{_shown(row, row.return_mean)} ± {_shown(row, row.return_ci95)}"
            if half_width
            else _mean(row),
            _shown(row, row.return_min),
            _shown(row, row.return_max),
            "{} ({} to {})".format(*(_shown(row, x) for x in row.return_iqm))
            if row.seeds >= (2 if half_width else FEWEST)
            else ABSENT,
            shown_epsilon(row.epsilon),
            short(row.delta),
            shown_epsilon(row.epsilon_paper),
            f"{row.guarantee} [{kinds.index(row.terms) + 1}]",
            f"{row.steps:,}",
            _whole(row.steps_per_second),
        ]
        for row in rows
    ]
    if with_variant:
        head.insert(3, "variant")
        for line, row in zip(lines, rows, strict=True):
            line.insert(3, row.variant or ABSENT)
    return head, lines


def legend(rows: Sequence[Row]) -> str:
    """The note of a table: definition of its numbers, and the numbered guarantees."""
    return ". ".join([_note(rows).rstrip("."), *_numbered(rows)])


def _numbered(rows: Sequence[Row]) -> list[str]:
    """The numbered guarantees of the rows."""
    kinds = dict.fromkeys(row.terms for row in rows)
    return [f"[{at}] {kind.describe()}" for at, kind in enumerate(kinds, start=1)]


def _note(rows: Sequence[Row], half_width: bool = False) -> str:
    """What the numbers of the rows are."""
    what = "; ".join(dict.fromkeys(row.measure.note for row in rows)) or RETURN.note
    if half_width:
        return f"{what}, with the half width of its 95 % t interval over seeds (- for one seed)."
    return (
        f"{what}, with its 95 % bootstrap interval over seeds, which stays within the seeds' values. "
        f"Fewer than {FEWEST} seeds have the range of their values in its place, which is no 95 % "
        "interval; one has none."
    )


def markdown(rows: Sequence[Row], half_width: bool = False) -> str:
    """The table in Markdown with the definitions of its numbers; `half_width`: as in `cells`."""
    note = _note(rows, half_width)
    terms = [f"- {line}" for line in _numbered(rows)]
    return "\n".join(
        [aligned(*cells(rows, half_width)), "", note, "", "Guarantees:", "", *terms, ""]
    )


def exact(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[list[Any]]]:
    """(head, lines) of the table with full precision, for `table.csv`."""
    lines = []
    for row in rows:
        terms = row.terms
        values = [row.algo, row.env, ABSENT if row.z is None else row.z, row.variant, row.seeds]
        values += [row.return_mean, *row.return_interval, interval_name(row.seeds)]
        values += [row.return_min, row.return_max]
        iqm, *ends = row.return_iqm
        values += [row.return_median, iqm, *(ends if row.seeds >= FEWEST else (math.nan, math.nan))]
        values += [row.epsilon, row.delta, row.epsilon_paper, row.guarantee]
        values += [terms.unit, terms.notion, terms.adjacency, terms.caveats]
        lines.append([*values, row.steps, row.steps_per_second])
    return HEADER, lines


def write_tables(rows: Sequence[Row], folder: Path) -> None:
    """Write `table.md`, `table.csv` and `table.tex` into `folder`, creating it."""
    write_table(folder, markdown(rows), cells(rows), exact(rows))


def _variant(run: Run, differing_keys: set[str]) -> str:
    """The settings in which runs of the same algorithm and environment differ, as `key=value`."""
    mine = run.settings()
    keys = sorted(differing_keys - set(_OWN_COLUMN))
    return " ".join(f"{key}={_plain(mine[key])}" for key in keys if key in mine)


def _plain(value: Any) -> str:
    return "null" if value is None else str(value).replace(" ", "")


def _order(group: Group) -> tuple[Any, ...]:
    z = math.inf if group.z is None else -group.z
    return (group.env, group.algo, z, group.variant)


def _row(group: Group) -> Row:
    runs = group.runs
    returns = [run.final_value for run in runs]
    mean, half = mean_ci(returns)
    statuses = sorted({run.guarantee_status for run in runs})
    speeds = [number(run.summary.get("steps_per_second")) for run in runs]
    return Row(
        algo=group.algo,
        env=group.env,
        z=group.z,
        variant=group.variant,
        seeds=len(runs),
        return_mean=mean,
        return_ci95=half,
        return_interval=shown_interval(returns),
        return_min=min(returns),
        return_max=max(returns),
        return_median=float(np.median(returns)),
        return_iqm=iqm_ci(np.array(returns)[:, None], np.random.default_rng(0)),
        epsilon=_largest(run.epsilon for run in runs),
        delta=_largest(number(run.summary.get("delta")) for run in runs),
        epsilon_paper=_largest(number(run.summary.get("epsilon_paper")) for run in runs),
        guarantee="/".join(statuses),
        terms=_terms(runs),
        steps=int(_largest([number(run.summary.get("steps")) for run in runs], empty=0.0)),
        steps_per_second=sum(speeds) / len(speeds),
        measure=runs[0].measure,
    )


def _terms(runs: Sequence[Run]) -> GuaranteeTerms:
    """The terms of the runs' guarantees, joined by `/` where they differ."""

    def joined(key: str) -> str:
        return " / ".join(
            sorted({str(nested(run.summary, "guarantee", key) or "?") for run in runs})
        )

    names = {name for run in runs for name in run.caveats}
    return GuaranteeTerms(
        joined("unit"), joined("notion"), joined("adjacency"), ", ".join(sorted(names))
    )


def _largest(values: Any, empty: float = math.nan) -> float:
    return max((value for value in values if not math.isnan(value)), default=empty)


def mean_text(measure: Objective, values: Sequence[float]) -> str:
    """The mean over runs with what is shown beside it, named where it is no 95 % interval."""
    return _with_interval(measure, float(np.mean(values)), shown_interval(values), len(values))


def _mean(row: Row) -> str:
    return _with_interval(row.measure, row.return_mean, row.return_interval, row.seeds)


def _with_interval(measure: Objective, mean: float, ends: tuple[float, float], count: int) -> str:
    few = f", {interval_name(count)}" if count < FEWEST else ""
    shown = measure.show(mean) if math.isfinite(mean) else short(mean)
    return shown + measure.interval_text(*ends, few)


def _shown(row: Row, value: float) -> str:
    return row.measure.show(value) if math.isfinite(value) else short(value)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else short(value)
