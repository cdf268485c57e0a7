"""Tables over seeds. Runs that differ in the seed only are one row."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
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

# Settings that have a column of their own, as epsilon and z have.
_OWN_COLUMN = (
    *("algo.name", "env.name", "env.id", "env.domain", "env.task"),
    *("privacy.z", "privacy.epsilon"),
)
# Settings that change epsilon; a line of return against epsilon may differ in them.
_COSTS = ("privacy.population",)

HEADER = (
    *("algo", "env", "z", "variant", "seeds", "return", "low", "high", "interval", "min", "max"),
    *("median", "iqm", "iqm_low", "iqm_high", "epsilon", "delta", "epsilon_paper"),
    *("guarantee", "unit", "notion", "adjacency", "caveats", "steps", "steps_per_second"),
)


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed only, one per seed, in order of seeds: one line of a table."""

    algo: str
    env: str
    z: float | None
    variant: str  # the settings in which groups of this algorithm and environment differ
    line: str  # the same without those that change epsilon: one line of return against epsilon
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """Short name for legends, without the environment."""
        return ", ".join(part for part in (self.algo, self.variant, self.noise) if part)

    @property
    def noise(self) -> str:
        """How private it is, in two words; the noise multiplier of runs that have no epsilon yet."""
        if math.isinf(self.epsilon):
            return "not private"
        if math.isnan(self.epsilon):
            return "" if self.z is None else f"z = {self.z:g}"
        return f"epsilon {shown_epsilon(self.epsilon)}"

    @property
    def count(self) -> str:
        """The number of seeds in words."""
        return f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"

    @property
    def seeds(self) -> int:
        """Number of runs."""
        return len(self.runs)

    @property
    def measure(self) -> Objective:
        """What the runs are judged by."""
        return self.runs[0].measure

    @cached_property
    def values(self) -> list[float]:
        """Final values of the objective."""
        return [run.final_value for run in self.runs]

    @property
    def mean(self) -> float:
        """Mean of the final values."""
        return mean_ci(self.values)[0]

    @property
    def spread(self) -> tuple[float, float, str]:
        """(low, high, name) of what is shown beside the mean; of one seed the interval over its episodes."""
        if self.seeds > 1:
            return (*shown_interval(self.values), interval_name(self.seeds, "seeds"))
        (run,) = self.runs
        low, high, episodes = (run.evaluated(key) for key in ("low", "high", "episodes"))
        if math.isnan(low) or math.isnan(high) or (math.isnan(episodes) and self.measure is RETURN):
            return (math.nan, math.nan, "")
        return (low, high, self.measure.interval_name.format(episodes=f"{episodes:.0f}"))

    @cached_property
    def iqm(self) -> tuple[float, float, float]:
        """Interquartile mean of the final values, and the ends of its bootstrap interval."""
        return iqm_ci(np.array(self.values)[:, None], np.random.default_rng(0))

    @property
    def epsilon(self) -> float:
        """The largest of the runs."""
        return _largest(run.epsilon for run in self.runs)

    def largest(self, name: str) -> float:
        """The largest number of that name in the runs' summaries, nan if none has one."""
        return _largest(number(run.summary.get(name)) for run in self.runs)

    @property
    def status(self) -> str:
        """Status of the guarantees, joined by `/` where they differ."""
        return "/".join(sorted({run.guarantee_status for run in self.runs}))

    @property
    def steps_per_second(self) -> float:
        """Mean speed."""
        return sum(number(r.summary.get("steps_per_second")) for r in self.runs) / self.seeds

    @property
    def mechanism(self) -> str:
        """The mechanisms of the runs, joined by `/` where they differ."""
        found = {str(nested(run.config, "privacy", "mechanism") or "?") for run in self.runs}
        return "/".join(sorted(found))

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """Unit, notion and adjacency of the guarantees, joined by `/` where they differ, and their caveats."""
        found = [
            {str(nested(run.summary, "guarantee", key) or "?") for run in self.runs}
            for key in ("unit", "notion", "adjacency")
        ]
        caveats = sorted({name for run in self.runs for name in run.caveats})
        return (*(" / ".join(sorted(one)) for one in found), ", ".join(caveats))


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
            line=_variant(first, keys - set(_COSTS)),
            runs=tuple(sorted(group, key=lambda run: str(run.seed).zfill(12))),
        )
        for group, first, keys in zip(members, firsts, differing(firsts), strict=True)
    ]
    return sorted(groups, key=_order)


def summarise(runs: Sequence[Run]) -> list[Group]:
    """The groups of finished runs; others are left out (see `left_out`)."""
    return group_runs(usable(runs))


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


def exact(rows: Sequence[Group]) -> tuple[tuple[str, ...], list[list[Any]]]:
    """(head, lines) of the table with full precision, for `table.csv`."""
    lines = []
    for row in rows:
        values: list[Any] = [
            row.algo,
            row.env,
            ABSENT if row.z is None else row.z,
            row.variant,
            row.seeds,
        ]
        values += [row.mean, *row.spread]
        values += [min(row.values), max(row.values), float(np.median(row.values))]
        iqm, *ends = row.iqm
        values += [iqm, *(ends if row.seeds >= FEWEST else (math.nan, math.nan)), row.epsilon]
        values += [row.largest("delta"), row.largest("epsilon_paper"), row.status, *row.terms]
        lines.append([*values, _steps(row), row.steps_per_second])
    return HEADER, lines


def write_tables(rows: Sequence[Group], folder: Path) -> None:
    """Write `table.md`, `table.csv` and `table.tex` into `folder`, creating it."""
    write_table(folder, markdown(rows), printed(rows), exact(rows), definitions(rows))


def markdown(rows: Sequence[Group]) -> str:
    """The table of a report in Markdown with the definitions of its numbers."""
    return "\n".join([aligned(*printed(rows)), *(f"\n{note}" for note in definitions(rows)), ""])


def definitions(rows: Sequence[Group]) -> list[str]:
    """What stands below `printed`: what the numbers are, the steps, and the numbered guarantees."""
    names = []
    if any(row.seeds >= FEWEST for row in rows):
        names.append("its 95 % bootstrap interval over seeds, which stays within their values")
    if any(1 < row.seeds < FEWEST for row in rows):
        names.append(f"the range of the seeds' values where they are fewer than {FEWEST}")
    if any(row.seeds == 1 and row.spread[2] for row in rows):
        names.append("for one seed the interval of its final evaluation")
    what = "; ".join(dict.fromkeys(row.measure.note for row in rows)) or RETURN.note
    steps = dict.fromkeys(f"{_steps(row):,} of {row.algo} on {row.env}" for row in rows)
    notes = [f"{what}{', with ' if names else ''}{'; '.join(names)}."]
    notes.append(f"Steps of a run: {'; '.join(steps)}.")
    for at, terms in enumerate(dict.fromkeys(map(_kind, rows)), start=1):
        members = [row for row in rows if _kind(row) == terms]
        if not terms:
            notes.append(f"[{at}] not private")
            continue
        deltas = dict.fromkeys(short(row.largest("delta")) for row in members)
        noise = dict.fromkeys(row.mechanism for row in members)
        unit, notion, adjacency, caveats = terms
        outside = f"; outside epsilon: {caveats}" if caveats else ""
        notes.append(
            f"[{at}] unit: {unit}; notion {notion}; adjacency {adjacency}; "
            f"delta {' or '.join(deltas)}; mechanism {' or '.join(noise)}{outside}"
        )
    return notes


def _kind(row: Group) -> tuple[str, ...]:
    """The terms of a guarantee; empty without one."""
    return () if math.isinf(row.epsilon) else row.terms


def printed(rows: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """(head, lines) of the table of a report: at most seven columns. `definitions` has the guarantees."""
    kinds = list(dict.fromkeys(map(_kind, rows)))
    name = "/".join(dict.fromkeys(row.measure.name for row in rows)) or RETURN.name
    spread = {row.spread[2] for row in rows} - {""}
    told = (
        spread if len(spread) == 1 else spread & {"95 % interval"}
    )  # others are named in their rows
    name += "".join(f" ({one})" for one in told)
    head = ["algo", "env", "variant", "seeds", name, "epsilon", "guarantee"]
    lines = [
        [
            row.algo,
            row.env,
            row.variant or ABSENT,
            str(row.seeds),
            _mean_text(row, told),
            shown_epsilon(row.epsilon),
            f"{row.status} [{kinds.index(_kind(row)) + 1}]",
        ]
        for row in rows
    ]
    if not any(row.variant for row in rows):
        for line in (head, *lines):
            del line[2]
    return head, lines


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


def _largest(values: Iterable[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def mean_text(measure: Objective, values: Sequence[float]) -> str:
    """The mean over runs with what is shown beside it, named where it is no 95 % interval."""
    mean = float(np.mean(values))
    few = f", {interval_name(len(values))}" if len(values) < FEWEST else ""
    shown = measure.show(mean) if math.isfinite(mean) else short(mean)
    return shown + measure.interval_text(*shown_interval(values), few)


def _mean_text(row: Group, told: Collection[str]) -> str:
    """The mean of a row with its spread, whose name follows where the head of the column does not tell it."""
    low, high, name = row.spread
    return row.measure.show(row.mean) + row.measure.interval_text(
        low, high, "" if name in told else f", {name}"
    )


def _steps(row: Group) -> int:
    steps = row.largest("steps")
    return 0 if math.isnan(steps) else int(steps)
