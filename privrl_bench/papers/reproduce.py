"""The command `privrl reproduce`: run what the tables and figures of a paper need, and write the comparison.

Every run is an ordinary job of a sweep with its ordinary folder. So a stopped reproduction resumes, and items
share the runs that they have in common.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from privrl_bench.cli.parsing import Parser, check_at_least, given
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import checked
from privrl_bench.config.overrides import explicit_keys, later_wins
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.packs.offline.collect import collect, parse
from privrl_bench.papers.estimate import costs, table
from privrl_bench.papers.items import Paper, Setting, finished_runs, papers, trivial_scores
from privrl_bench.papers.paper_item import write_item
from privrl_bench.reporting.run_loader import load_run
from privrl_bench.training import sweep as jobs
from privrl_bench.training.crash import guarded
from privrl_bench.training.sweep import run_jobs
from privrl_bench.training.writable import check_folder

ABOUT = """Reproduce tables and figures of papers: run what is missing, compare, draw.

  {0} dppg-table1 --scale smoke
  {0} dppg-table1 dppg-fig1 --scale paper --seeds 5
  {0} all --scale paper --estimate

Runs and pages go to outputs/reproduce/<paper>/<scale>/. Rerun the same command to resume."""
SCALES = ("smoke", "short", "paper")
_QUIET = ("log=none", "log.plot=false")  # a curve takes half a second, and items draw their own
_TOGETHER = 40  # runs that are trained in one program at most; these are small
_STOPPED = 128  # exit codes of interruptions are this plus the signal's number
_COLLECT = Path("outputs/collect")


def main(arguments: Sequence[str] | None = None, prog: str = "privrl reproduce") -> int:
    """Run the command and return its exit code."""
    return guarded(lambda: _reproduce(given(arguments), prog))


def _reproduce(words: Sequence[str], prog: str) -> int:
    known = {
        f"{name}-{item}": (path, item)
        for name, path in papers().items()
        for item in Paper(path).items()
    }
    parser = Parser(prog, ABOUT.format(prog))
    parser.add_argument("items", nargs="+", metavar="ITEM", help=f"{', '.join(known)}, all")
    parser.add_argument("--scale", choices=SCALES, default="short", help="size (default short)")
    parser.add_argument("--seeds", type=int, metavar="N", help="instead of the scale's own number")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/reproduce"), metavar="DIR",
        help="for runs and pages (default outputs/reproduce)",
    )  # fmt: skip
    parser.add_argument(
        "--report-only", action="store_true", help="run nothing, report what exists"
    )
    parser.add_argument(
        "--estimate", action="store_true", help="run nothing, print core-hours by item"
    )
    options = parser.read(words)
    check_at_least("--seeds", options.seeds, 1)
    chosen: dict[Path, list[str]] = {}
    for word in known if "all" in options.items else options.items:
        if word not in known:
            near = suggest(word, known)
            raise ConfigError(
                "item", f"no such item {word}{near}; allowed: {', '.join(known)}, all"
            )
        path, item = known[word]
        chosen.setdefault(path, []).append(item)
    if options.estimate:
        named = [(Paper(path), items) for path, items in chosen.items()]
        found = list(costs(named, options.scale, options.seeds, options.out))
        print(table(found, options.out))
        return 0
    settings = (options.scale, options.seeds, options.out, options.report_only)
    return max(reproduce(Paper(path), items, *settings) for path, items in chosen.items())


def reproduce(
    paper: Paper, names: Iterable[str], scale: str, seeds: int | None, out: Path, only_report: bool
) -> int:
    """Run what is missing, then write the report of every item; after an interruption no report.

    Args:
        paper: the paper.
        names: of its items.
        scale: smoke | short | paper.
        seeds: number of seeds; None for that of the scale.
        out: runs and reports are written to `out`/<paper>/<scale>.
        only_report: run nothing.

    Returns:
        The exit code.

    Raises:
        ConfigError: there is no such item or scale, nothing to report, or `out` cannot be written.
    """
    chosen = [(name, paper.item(name, scale, seeds)) for name in names]
    root = out / paper.name / scale
    check_folder("--out", root)
    if only_report and not (root / "runs").is_dir() and any(x.settings() for _, x in chosen):
        raise ConfigError("--out", f"no runs in {root}; leave out --report-only to make them")
    items = {name: item.replaced(Setting.calibrated) for name, item in chosen}
    code = 0
    if not only_report:
        settings = list(dict.fromkeys(s for item in items.values() for s in item.settings()))
        orders = [order for item in items.values() for order in item.datasets()]
        code = gather(paper, scale, {s.env for s in settings})
        code = code or sum(collect(parse(order), _COLLECT) for order in orders)
        code = code or drive(settings, root / "runs")
        if code >= _STOPPED:
            print(
                "interrupted; rerun the same command to resume, or add --report-only",
                file=sys.stderr,
            )
            return code
    for name, item in items.items():
        runs = finished_runs(root / "runs", item)
        page = write_item(item, paper.title, root / name, runs, trivial_scores(item))
        print(f"results {page}", flush=True)
    return code


def gather(paper: Paper, scale: str, envs: Iterable[str]) -> int:
    """Collect the datasets that a scale needs and that do not exist. Returns the exit code."""
    orders = paper.content.get("collect", {}).get(scale, {})
    for env in sorted(set(envs) & set(orders)):
        code = collect(parse([f"env={env}", *orders[env]]), _COLLECT)
        if code:
            return code
    return 0


def drive(settings: Sequence[Setting], root: Path) -> int:
    """Train what is not finished, as one sweep. Returns the exit code; `ConfigError`: all were refused."""
    outcomes = run_jobs(unfinished(settings, root))
    jobs.check_refused(outcomes)
    if code := jobs.interruption(outcomes):
        return code
    bad = [one for one in outcomes if one.status == "failed"]
    for one in bad:
        print(f"failed  {one.folder}: {one.reason}", flush=True)
    return int(bool(bad))


def unfinished(settings: Sequence[Setting], root: Path) -> list[jobs.Job]:
    """The runs that are not finished; settings of several lines may differ in the order of words only."""
    found: dict[Path, jobs.Job] = {}
    for setting in settings:
        for seed in setting.each_seed():
            folder, words = root / setting.key(seed), setting.overrides(seed)
            if folder not in found and load_run(folder).state != "done":
                more = later_wins(words, _QUIET, [f"hardware.max_replicas={_TOGETHER}"])
                run = checked(config.compose_raw(more), explicit_keys(words))
                found[folder] = jobs.Job(len(found), run, folder, words)
    return list(found.values())
