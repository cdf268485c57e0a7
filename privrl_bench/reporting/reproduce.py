"""Drives the runs that answer a paper's tables and figures, then writes the comparison.

What is to be run stands in a YAML file (scripts/papers/*.yaml); every run is an ordinary job of a sweep
with its ordinary folder, so a stopped reproduction goes on where it was, and items share the runs that they
have in common.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from privrl_bench.cli import train as cli
from privrl_bench.cli.collect import collect, parse
from privrl_bench.config import compose as config
from privrl_bench.config.overrides import later_wins
from privrl_bench.datasets.minari_io import open_dataset
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.evaluation.baselines import trivial_returns
from privrl_bench.privacy.accounting.calibrate import z_for
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.reporting.paper import Cell, Line, Panel, Picture, Table, write_item
from privrl_bench.reporting.runs import load_run
from privrl_bench.sweep import jobs
from privrl_bench.sweep.grouping import run_jobs


@dataclass(frozen=True)
class Want:
    """Runs of one setting over seeds. `words` hold neither the seed nor the environment.

    `target`: epsilon that all rounds together may cost, for which `calibrated` finds the z.
    """

    env: str
    words: tuple[str, ...]
    seeds: int
    target: float | None = None

    def overrides(self, seed: int) -> list[str]:
        """The command line of one run."""
        return later_wins([f"env={self.env}", *self.words, f"seed={seed}"])

    def folder(self, root: Path, seed: int) -> Path:
        """Where `privrl-bench` would put the run below `root`."""
        words = self.overrides(seed)
        algo = next(w.partition("=")[2] for w in self.words if w.startswith("algo="))
        return root / config.run_folder({"algo": algo, "env": self.env}, words, seed)


@dataclass
class Paper:
    """The file of one paper."""

    path: Path
    content: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.content = yaml.safe_load(self.path.read_text())

    @property
    def name(self) -> str:
        """`dppg` for dppg.yaml."""
        return self.path.stem

    def items(self) -> list[str]:
        """Names of tables and figures."""
        return list(self.content["items"])

    def scale(self, name: str, env: str, seeds: int | None) -> tuple[int, tuple[str, ...]]:
        """(seeds, further words) of an environment at a scale."""
        scale = self.content["scales"][name]
        special = scale.get("envs", {}).get(env, {})
        count = seeds or special.get("seeds", scale["seeds"])
        words = special.get("words", scale["words"])
        extra = scale["words"] if "words" in special and special["words"] != scale["words"] else []
        own = {w.partition("=")[0] for w in words}
        kept = [w for w in extra if w.partition("=")[0] not in own and words]
        return count, (*kept, *words)


def table_of(paper: Paper, name: str, scale: str, seeds: int | None) -> Table:
    """A table's cells with the runs they want."""
    item = paper.content["items"][name]
    rows = []
    for env, label, mean, half, words, formal in item["rows"]:
        count, more = paper.scale(scale, env, seeds)

        def want(
            given: Sequence[str] | None,
            env: str = env,
            more: tuple[str, ...] = more,
            count: int = count,
        ) -> Want | None:
            return None if given is None else Want(env, (*given, *more), count)

        rows.append(Cell(env, label, (mean, half), want(words), want(formal)))
    return Table(item["title"], rows)


def picture_of(paper: Paper, name: str, scale: str, seeds: int | None) -> Picture:
    """A figure's panels with the runs they want."""
    item = paper.content["items"][name]
    kind = item["picture"]
    if "like" in item:
        table = table_of(paper, item["like"], scale, seeds)
        panels = []
        for env, cells in itertools.groupby(table.cells, key=lambda cell: cell.env):
            lines = []
            for cell in cells:
                if cell.paper_like:
                    lines.append(Line(cell.label, False, [cell.paper_like]))
                if cell.formal:
                    noised = "privacy.z=0" not in cell.formal.words
                    label = f"{cell.label}, formal" if noised else cell.label
                    lines.append(Line(label, noised, [cell.formal]))
            panels.append(Panel(env, lines))
        return Picture(item["title"], kind, panels)
    panels = []
    most = paper.content["scales"][scale].get("points")
    for panel in item.get("panels", []):
        count, more = paper.scale(scale, panel["env"], seeds)
        count = seeds or panel.get("seeds", {}).get(scale, count)
        lines = []
        for line in panel.get("lines", item.get("lines", [])):
            sized = line.get("scaled", {}).get(scale, [])
            base = (*line["words"], *panel["words"], *more)
            key = line.get("key", "privacy.z")
            sweep = [[f"{key}={value}"] for value in line.get("sweep", [])] or [[]]
            points = line.get("points", sweep)[:most]
            target = line.get("target")
            needs_release = [
                Want(panel["env"], (*base, *own, *extra), count, target)
                for own, extra in zip(_for_each(sized, points), points, strict=True)
            ]
            lines.append(Line(line["label"], bool(line.get("formal")), needs_release))
        panels.append(Panel(panel["label"], lines))
    return Picture(item["title"], kind, panels, item.get("facts", {}))


def _for_each(sized: Sequence[Any], points: Sequence[Any]) -> list[list[str]]:
    """A scale's words for every point of a line: a list for each (more are left out), or one for all."""
    if sized and isinstance(sized[0], list):
        if len(sized) < len(points):
            raise ConfigError(
                "scaled", f"has words for {len(sized)} points, the line has {len(points)}"
            )
        return [list(words) for words in sized[: len(points)]]
    return [list(sized)] * len(points)


def calibrated(want: Want) -> Want:
    """With the z, in its words, that makes all rounds of one of n cost at most `target`; as it is without one.

    Raises ConfigError: its people are not drawn one of n, whose number it says.
    """
    if want.target is None:
        return want
    run = config.compose(want.overrides(0))
    privacy = run.privacy
    if (
        not privacy.rules.sampler.random
        or privacy.rules.sampler.independent
        or privacy.population is None
        or run.rounds is None
    ):
        raise ConfigError(
            "target", "needs privacy=uniform_single_user, privacy.population and rounds"
        )
    z = _z_of_one_of_n(
        want.target, privacy.population, run.rounds, privacy.delta, privacy.accountant
    )
    return replace(want, words=(*want.words, f"privacy.z={z:g}"), target=None)


@functools.cache
def _z_of_one_of_n(target: float, people: int, rounds: int, delta: float, kind: str) -> float:
    """To 3 digits, rounded up: seconds each."""

    def event(z: float) -> ReleaseEvent:
        return ReleaseEvent("gaussian", z, "replace_one", 1.0 / people, people, 1)

    return z_for(target, event, rounds, delta, kind, digits=3)


def with_noise(item: Table | Picture) -> Table | Picture:
    """The item with every setting `calibrated`. Raises ConfigError."""
    if isinstance(item, Table):
        return item
    panels = [
        replace(
            panel,
            lines=[
                replace(line, needs_release=[calibrated(want) for want in line.needs_release])
                for line in panel.lines
            ],
        )
        for panel in item.panels
    ]
    return replace(item, panels=panels)


def wants_of(item: Table | Picture) -> list[Want]:
    """Every setting of an item, once."""
    found: dict[Want, None] = {}
    if isinstance(item, Table):
        for cell in item.cells:
            found |= {w: None for w in (cell.paper_like, cell.formal) if w is not None}
    else:
        for panel in item.panels:
            found |= {w: None for line in panel.lines for w in line.needs_release}
    return list(found)


def reproduce(
    paper: Paper, names: Iterable[str], scale: str, seeds: int | None, out: Path, only_report: bool
) -> int:
    """Run what is missing, then write the report of every item. Returns the exit code.

    Raises:
        ConfigError: no such item or scale.
    """
    chosen = list(names)
    for name in chosen:
        if name not in paper.items():
            allowed = [f"{paper.name}-{item}" for item in paper.items()]
            near = suggest(f"{paper.name}-{name}", allowed)
            raise ConfigError(
                "item",
                f"no such item {paper.name}-{name}{near}; allowed: {', '.join(allowed)}, all",
            )
    items: dict[str, Table | Picture] = {}
    for name in chosen:
        kind = table_of if "rows" in paper.content["items"][name] else picture_of
        items[name] = with_noise(kind(paper, name, scale, seeds))
    root = out / paper.name / scale
    code = 0
    if not only_report:
        needs_release = list(dict.fromkeys(w for item in items.values() for w in wants_of(item)))
        orders = [item.facts.get("collect") for item in items.values() if isinstance(item, Picture)]
        code = gather(paper, scale, {w.env for w in needs_release})
        code = code or sum(
            collect(parse(order), Path("outputs/collect")) for order in orders if order
        )
        code = code or drive(needs_release, root / "runs")
    for name, item in items.items():
        runs, trivial = load(root / "runs", item), trivial_scores(item)
        if isinstance(item, Picture) and "data" in item.facts:
            item = replace(item, facts=item.facts | {"values": observations(item.facts["data"])})
        page = write_item(item, paper.content["paper"], root / name, runs, trivial)
        print(f"look at {page}", flush=True)
    return code


def observations(name: str) -> np.ndarray:
    """[N, D] observations of a local dataset before every step. Raises ConfigError: it is not there."""
    flat = open_dataset(name)
    first = np.arange(flat.steps) + np.repeat(np.arange(flat.episodes), flat.lengths)
    return np.asarray(flat.observations[first], dtype=np.float64)


def gather(paper: Paper, scale: str, envs: Iterable[str]) -> int:
    """Collect the datasets that a scale needs and that are not there. Returns the exit code."""
    orders = paper.content.get("collect", {}).get(scale, {})
    for env in sorted(set(envs) & set(orders)):
        code = collect(parse([f"env={env}", *orders[env]]), Path("outputs/collect"))
        if code:
            return code
    return 0


def drive(needs_release: Sequence[Want], root: Path) -> int:
    """Train what is not done yet, with the time left for the whole. Returns the exit code."""
    parts = _parts(needs_release, root)
    total = sum(_size(job) for part in parts for job in part)
    done, failed, started = 0, 0, time.perf_counter()
    for number, part in enumerate(parts, start=1):
        passed = time.perf_counter() - started
        left = f", about {_minutes(passed * (total - done) / done)} left" if done else ""
        first = part[0]
        print(
            f"whole   part {number} of {len(parts)}: {len(part)} runs of {first.config.algo.name} on "
            f"{first.config.env.label}; {100 * done / max(total, 1):.0f} % of the steps done{left}",
            flush=True,
        )
        with cli.results_file() as results:
            code = run_jobs(part)
            outcomes = jobs.recorded(results)
        if code:
            return code
        bad = [one for one in outcomes if one.status == "failed"]
        failed += len(bad)
        for one in bad:
            print(f"failed  {one.folder}: {one.reason}", flush=True)
        done += sum(map(_size, part))
    return int(failed > 0)


def _parts(needs_release: Sequence[Want], root: Path) -> list[list[jobs.Job]]:
    """Jobs in parts that are trained one after the other: small ones together, large ones alone."""
    parts: list[list[jobs.Job]] = []
    by_setting: dict[tuple[str, ...], list[jobs.Job]] = {}
    number, taken = itertools.count(), set()
    for want in needs_release:
        key = (want.env, *[w for w in want.words if not w.startswith("privacy.z=")])
        raw = config.compose_raw(
            later_wins(want.overrides(0), _QUIET, [f"hardware.max_replicas={_TOGETHER}"])
        )
        for seed in range(want.seeds):
            folder, words = want.folder(root, seed), want.overrides(seed)
            if folder in taken or load_run(folder).state == "done":
                continue
            taken.add(
                folder
            )  # settings of several lines may differ in the order of their words only
            run = config.replace(raw, f"seed={seed}")  # composing takes a tenth of a second
            by_setting.setdefault(key, []).append(jobs.Job(next(number), run, folder, words))
    room = 0
    for group in by_setting.values():
        steps = sum(map(_size, group))
        if parts and room + steps <= _SMALL:
            parts[-1] += group
            room += steps
        else:
            parts.append(list(group))
            room = steps
    return parts


def _size(job: jobs.Job) -> int:
    """About how many environment steps it counts."""
    run = job.config
    return run.rounds * _STEPS if run.rounds and run.algo.evaluates else run.total_steps


_QUIET = ("log=none", "log.plot=false")  # a curve takes half a second, and items draw their own
_TOGETHER = 40  # runs that are trained in one program at most; these are small
_STEPS = 200  # of one trajectory, where values are evaluated and `total_steps` means nothing
_SMALL = 1_000_000  # steps of runs that are handed out together


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def trivial_scores(item: Table | Picture) -> dict[str, str]:
    """For a table: what policies that learn nothing score in 100 episodes of every environment."""
    found = {}
    for env in sorted({cell.env for cell in item.cells}) if isinstance(item, Table) else ():
        scores = [
            (name, f"{mean:.1f} ± {half:.1f}") for name, (mean, half) in trivial_returns(env, 100)
        ]
        if scores:
            found[env] = "; ".join(f"{score} ({name})" for name, score in scores)
    return found


def load(root: Path, item: Table | Picture) -> dict[Want, list[Any]]:
    """Finished runs of every setting of an item."""
    found = {}
    for want in wants_of(item):
        runs = [load_run(want.folder(root, seed)) for seed in range(want.seeds)]
        found[want] = [run for run in runs if run.state == "done"]
    return found
