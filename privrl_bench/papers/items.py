"""Tables and figures of papers, described in YAML (privrl_bench/papers/*.yaml), and the runs that they show."""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import yaml

from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.evaluation.baselines import trivial_episodes
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.papers import analytic_figures, convergence, datasize, run_figures, states
from privrl_bench.papers.paper_item import Cell, Item, Line, Panel, PaperTable, guarantees
from privrl_bench.privacy.accounting.calibrate import z_for
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.rules import rules
from privrl_bench.reporting import page
from privrl_bench.reporting.run_loader import by_key
from privrl_bench.reporting.runs import Run, Runs
from privrl_bench.reporting.table_writer import aligned, csv_text, parsed, write_table

_EPISODES = 100  # of a policy that does not learn
_TRIVIAL = "trivial.csv"


# --- figures: each kind is drawn and tabulated by functions of its own


def _all(picture: Any, runs: Runs) -> Runs:
    return runs


@dataclass(frozen=True)
class Kind:
    """How a figure is drawn, and the numbers behind it.

    Attributes:
        draw: Draws the figure from runs, to a path; None: it is drawn from its table.
        numbers: Returns (head, lines) of its table.
        within: Whether it shows evaluations within runs.
        keep: Writes what is kept of each run in place of its curve; None if that is kept.
        of: What the other functions get of the runs of each setting.
        of_table: Draws it from the lines of its table; None: it cannot be drawn without its runs.
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
    "regret": Kind(run_figures.draw_regret),
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

    def environments(self) -> list[str]:
        """Those of all panels, if returns of policies that do not learn are kept (`trivial`)."""
        return sorted({one.env for one in self.settings()}) if self.facts.get("trivial") else []

    def datasets(self) -> list[list[str]]:
        """The dataset whose observations are drawn, if it is one of those."""
        return [self.facts["collect"]] if "collect" in self.facts else []

    def complete(self, runs: Runs) -> bool:
        """Whether all runs have the evaluations that the figure shows."""
        every = [run for some in runs.values() for run in some]
        return not KINDS[self.kind].within or all(len(run.curve()[0]) for run in every)

    @property
    def small(self) -> bool:
        """Whether curves are kept as means of ten episodes."""
        return KINDS[self.kind].keep is not None

    @property
    def last_of(self) -> str | None:
        """The metric whose last evaluation is all that the figure shows of a run."""
        return self.facts.get("metric") if KINDS[self.kind].of_table else None

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
        """Draw `figure.png` and `figure.svg`, and write the numbers behind them."""
        kind, path, parts = KINDS[self.kind], out / "figure.png", list[str]()
        shown = kind.of(self, runs)
        head, lines = kind.numbers(self, shown)
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


# --- settings and papers


@dataclass(frozen=True)
class Setting:
    """Runs of one setting over seeds.

    Attributes:
        words: Overrides, without the seed and the environment.
        target: Epsilon of all rounds together, from which `calibrated` computes z.
        first: The first seed.
    """

    env: str
    words: tuple[str, ...]
    seeds: int
    target: float | None = None
    first: int = 0

    def each_seed(self) -> range:
        """Its seeds."""
        return range(self.first, self.first + self.seeds)

    def overrides(self, seed: int) -> list[str]:
        """Overrides of one run."""
        return later_wins([f"env={self.env}", *self.words, f"seed={seed}"])

    def key(self, seed: int) -> str:
        """The run folder of `privrl-bench`, relative to its root."""
        algo = next(w.partition("=")[2] for w in self.words if w.startswith("algo="))
        chosen = {"algo": algo, "env": self.env}
        return config.run_folder(chosen, self.overrides(seed), seed)

    def calibrated(self) -> Setting:
        """The setting with the z of its target epsilon; itself without a target.

        Raises:
            ConfigError: One user is not drawn uniformly from a known population, or `rounds` is not set.
        """
        if self.target is None:
            return self
        run = compose(self.overrides(0))
        privacy = run.privacy
        sampler = rules(privacy).sampler
        uniform = sampler.exact and sampler.random
        if not uniform or privacy.population is None or run.rounds is None:
            raise ConfigError(
                "target", "needs privacy=uniform_single_user, privacy.population and rounds"
            )
        z = _calibrated_z(
            self.target, privacy.population, run.rounds, privacy.delta, privacy.accountant
        )
        return replace(self, words=(*self.words, f"privacy.z={z:g}"), target=None)


@functools.cache
def _calibrated_z(target: float, users: int, rounds: int, delta: float, kind: str) -> float:
    """Smallest z for a target epsilon, rounded up to 3 digits. Takes seconds."""

    def event(z: float) -> ReleaseEvent:
        return ReleaseEvent(
            "gaussian", z, "replace_one", 1.0 / users, users, 1, sampling="uniform_single_user"
        )

    return z_for(target, event, rounds, delta, kind, digits=3)


@dataclass
class Paper:
    """The description of one paper."""

    path: Path
    content: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.content = yaml.safe_load(self.path.read_text())

    @property
    def name(self) -> str:
        """`dppg` for dppg.yaml."""
        return self.path.stem

    @property
    def title(self) -> str:
        """Title and authors."""
        return str(self.content["paper"])

    def items(self) -> list[str]:
        """Names of tables and figures."""
        return list(self.content["items"])

    def item(self, name: str, scale: str, seeds: int | None = None) -> Item:
        """A table or figure with its settings.

        Args:
            name: One of `items`.
            scale: smoke | short | paper.
            seeds: Number of seeds; None for that of the scale.

        Raises:
            ConfigError: There is no such item, or the description is inconsistent.
        """
        if name not in self.items():
            allowed = [f"{self.name}-{item}" for item in self.items()]
            near = suggest(f"{self.name}-{name}", allowed)
            raise ConfigError(
                "item", f"no such item {self.name}-{name}{near}; allowed: {', '.join(allowed)}, all"
            )
        make = self._table if "rows" in self.content["items"][name] else self._picture
        return make(name, scale, seeds)

    def scale(self, name: str, env: str, seeds: int | None) -> tuple[int, tuple[str, ...]]:
        """(number of seeds, further words) of an environment at a scale."""
        scale = self.content["scales"][name]
        special = scale.get("envs", {}).get(env, {})
        count = seeds or special.get("seeds", scale["seeds"])
        words = special.get("words", scale["words"])
        extra = scale["words"] if "words" in special and special["words"] != scale["words"] else []
        own = {w.partition("=")[0] for w in words}
        kept = [w for w in extra if w.partition("=")[0] not in own and words]
        return count, (*kept, *words)

    def _first_seed(self, scale: str) -> int:
        return int(self.content["scales"][scale].get("first_seed", 0))

    def _table(self, name: str, scale: str, seeds: int | None) -> PaperTable:
        item = self.content["items"][name]
        rows = []
        for env, label, mean, half, *words in item["rows"]:
            count, more = self.scale(scale, env, seeds)
            first = self._first_seed(scale)
            like, formal = (
                None if given is None else Setting(env, (*given, *more), count, first=first)
                for given in words
            )
            paper = None if mean is None else (mean, half)
            rows.append(Cell(env, label, paper, like, formal, item.get("comparable", True)))
        return PaperTable(item["title"], rows)

    def _picture(self, name: str, scale: str, seeds: int | None) -> PaperFigure:
        item = self.content["items"][name]
        if "like" in item:
            panels = _panels_like(self._table(item["like"], scale, seeds))
            facts = item.get("facts", {}) | {"kept": item["like"]}
            return PaperFigure(item["title"], item["picture"], panels, facts)
        panels = []
        for panel in item.get("panels", []):
            count, more = self.scale(scale, panel["env"], seeds)
            count = seeds or panel.get("seeds", {}).get(scale, count)
            every = range(first := self._first_seed(scale), first + count)
            lines = [
                self._line(line, panel, more, every, scale)
                for line in panel.get("lines", item.get("lines", []))
            ]
            panels.append(Panel(panel["label"], lines))
        facts = item.get("facts", {}) | item.get("facts_at", {}).get(scale, {})
        return PaperFigure(item["title"], item["picture"], panels, facts)

    def _line(self, line: Any, panel: Any, more: Sequence[str], seeds: range, scale: str) -> Line:
        sized = line.get("scaled", {}).get(scale, [])
        base = (*line["words"], *panel["words"], *more)
        key = line.get("key", "privacy.z")
        values = line.get("sweep_at", {}).get(scale, line.get("sweep", []))
        sweep = [[f"{key}={value}"] for value in values] or [[]]
        points = line.get("points", sweep)[: self.content["scales"][scale].get("points")]
        settings = [
            Setting(
                panel["env"], (*base, *own, *extra), len(seeds), line.get("target"), seeds.start
            )
            for own, extra in zip(_for_each(sized, points), points, strict=True)
        ]
        return Line(line["label"], bool(line.get("formal")), settings)


def _panels_like(table: PaperTable) -> list[Panel]:
    """A panel for each environment of a table, with a line for each of its settings."""
    panels = []
    for env, cells in itertools.groupby(table.cells, key=lambda cell: cell.env):
        lines = []
        for cell in cells:
            if cell.paper_like:
                lines.append(Line(cell.label, False, [cell.paper_like], cell.paper))
            if cell.formal:
                noised = "privacy.z=0" not in cell.formal.words
                label = f"{cell.label}, formal" if noised and cell.paper_like else cell.label
                paper = None if cell.paper_like else cell.paper
                lines.append(Line(label, noised, [cell.formal], paper))
        panels.append(Panel(env, lines))
    return panels


def _for_each(sized: Sequence[Any], points: Sequence[Any]) -> list[list[str]]:
    """A scale's words for each point of a line: one list for each (more are ignored), or one for all."""
    if sized and isinstance(sized[0], list):
        if len(sized) < len(points):
            raise ConfigError(
                "scaled", f"has words for {len(sized)} points, the line has {len(points)}"
            )
        return [list(words) for words in sized[: len(points)]]
    return [list(sized)] * len(points)


def papers() -> dict[str, Path]:
    """The YAML file of each paper, by its name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


@functools.cache
def paper(name: str) -> Paper:
    """A paper that is part of the package, for example `dppg`."""
    return Paper(papers()[name])


def finished_runs(root: Path, item: Item) -> dict[Setting, list[Run]]:
    """Finished runs of each setting of an item, from run folders below `root` or a store in it."""
    get = by_key(root)
    found = {}
    for setting in item.settings():
        runs = [get(setting.key(seed)) for seed in setting.each_seed()]
        found[setting] = [run for run in runs if run.state == "done"]
    return found


def trivial_scores(item: Item) -> dict[str, str]:
    """Environment -> returns of policies that do not learn, in 100 episodes, as text."""
    found = {}
    for env in item.environments():
        config = replace(compose([f"env={env}"]).env, obs_scaling="none")
        scores = []
        for name, episodes in trivial_episodes(config, env_spec(config), Streams(0), _EPISODES, 1):
            mean, half = (math.nan, math.nan) if episodes is None else mean_ci(episodes.returns)
            scores.append(f"{mean:.1f} ± {half:.1f} ({name})")
        if scores:
            found[env] = "; ".join(scores)
    return found


def write_trivial(scores: Mapping[str, str], folder: Path) -> None:
    """Write `trivial.csv`: returns of policies that do not learn, for each environment of a table."""
    text = csv_text(("env", "returns"), list(scores.items()))
    (folder / _TRIVIAL).write_text(text, encoding="utf-8")


def read_trivial(folder: Path) -> dict[str, str]:
    """Environment -> returns of policies that do not learn; empty without `trivial.csv`."""
    if not (folder / _TRIVIAL).exists():
        return {}
    with (folder / _TRIVIAL).open(encoding="utf-8", newline="") as file:
        return {row["env"]: row["returns"] for row in csv.DictReader(file)}
