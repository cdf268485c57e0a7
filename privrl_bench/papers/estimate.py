"""Core-hours that items of papers take, from the speeds of runs that were measured on this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.papers.items import Paper, Setting
from privrl_bench.reporting.run_loader import TOGETHER, load_runs
from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.table_writer import ABSENT, aligned
from privrl_bench.training.plan import make_plan

HEAD = ("item", "settings", "runs", "finished", "steps to do", "core-hours")
NOTE = (
    "core-hours: steps to do, times the core-seconds of a step (after the first round) of the finished "
    "runs of the same algorithm and task below {out}. Runs of several items count in the first."
)
_HOUR = 3600.0
_NOT_MEASURED = "no finished run"


@dataclass
class Speed:
    """Core-seconds and steps of finished runs."""

    seconds: float = 0.0
    steps: float = 0.0

    def add(self, run: Run) -> None:
        """Add a run's share of what its group took."""
        together = number(run.provenance.get(TOGETHER, 1))
        cores = number(run.provenance.get("workers", 1))
        steps, rate = (number(run.summary.get(name)) for name in ("steps", "steps_per_second"))
        if rate > 0:  # of one round there is none
            self.seconds += steps / rate * cores / together
            self.steps += steps


@dataclass
class Cost:
    """What is to be done for one item."""

    name: str
    settings: int = 0
    runs: int = 0
    finished: int = 0
    steps: float = 0.0
    hours: float = 0.0
    unknown: list[str] = field(default_factory=list)

    def line(self) -> list[str]:
        """The cells of its row."""
        hours = f"{self.hours:.2f}" + (" and more" if self.unknown else "")
        counts = [str(self.settings), str(self.runs), str(self.finished)]
        return [self.name, *counts, f"{self.steps:,.0f}", hours]


def speeds(out: Path) -> dict[tuple[str, str], Speed]:
    """Algorithm and environment -> speed of the finished runs below a folder."""
    found: dict[tuple[str, str], Speed] = defaultdict(Speed)
    for run in load_runs(out) if out.exists() else ():
        if run.state == "done":
            found[run.algo, run.env].add(run)
    return found


def steps_of(setting: Setting) -> float:
    """Steps of one run.

    Raises:
        ConfigError: It cannot be planned, for example because its dataset is not there.
    """
    plan = make_plan([compose(setting.overrides(setting.first))])
    return float(plan.rounds * plan.round_steps)


def costs(
    chosen: Iterable[tuple[Paper, Sequence[str]]], scale: str, seeds: int | None, out: Path
) -> Iterator[Cost]:
    """The cost of every item, in order; runs that an earlier one needs are not counted again."""
    known = speeds(out)
    for paper, names in chosen:
        counted: set[str] = set()  # keys of runs; settings may differ in the order of words only
        root = out / paper.name / scale / "runs"
        for name in names:
            settings = paper.item(name, scale, seeds).settings()
            cost = Cost(f"{paper.name}-{name}", len(settings))
            for given in settings:
                setting = given.calibrated()  # whose words are in the names of folders
                keys = {setting.key(seed) for seed in setting.each_seed()}
                done = {key for key in keys if (root / key / "summary.json").exists()}
                cost.runs += len(keys)
                cost.finished += len(done)
                if todo := keys - done - counted:
                    _add(cost, setting, len(todo), known)
                counted |= keys
            yield cost


def _add(cost: Cost, setting: Setting, runs: int, known: dict[tuple[str, str], Speed]) -> None:
    """Add the runs of a setting that are not finished."""
    algo = next(word.partition("=")[2] for word in setting.words if word.startswith("algo="))
    try:
        steps = runs * steps_of(setting)
    except ConfigError as error:
        cost.unknown.append(f"{algo} on {setting.env}: {error}")
        return
    cost.steps += steps
    if (speed := known.get((algo, setting.env), Speed())).steps:
        cost.hours += steps * speed.seconds / speed.steps / _HOUR
    else:
        cost.unknown.append(f"{algo} on {setting.env}: {_NOT_MEASURED}")


def table(found: Sequence[Cost], out: Path) -> str:
    """The costs as a table, with a line for each kind of run whose speed is not known."""
    total = Cost("all")
    for cost in found:
        total.steps += cost.steps
        total.hours += cost.hours
        total.unknown += cost.unknown
    lines = [cost.line() for cost in found]
    lines.append(["all", ABSENT, ABSENT, ABSENT, *total.line()[-2:]])
    text = f"{aligned(list(HEAD), lines)}\n\n{NOTE.format(out=out)}"
    if unknown := sorted(set(total.unknown)):
        text += f"\nNot in the sum: {'; '.join(unknown)}."
        if any(one.endswith(_NOT_MEASURED) for one in unknown):
            text += f" To measure speeds: --scale smoke --out {out}"
    return text
