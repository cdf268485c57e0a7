r"""Write the committed form of results from run folders, or its table and figure again.

    python -m privrl_bench.papers.pages.collect_results outputs/dppg --item outputs/paper/dppg/metric
    python -m privrl_bench.papers.pages.collect_results outputs/reproduce/dppg/paper/runs \
        --item outputs/paper/dppg/table1
    python -m privrl_bench.papers.pages.collect_results outputs/more --item outputs/paper/dppg/metric --add
    python -m privrl_bench.papers.pages.collect_results --item outputs/paper/dppg/table1

The folder of an item is outputs/paper/<paper>/<item>. For another scale than `paper`, the name of the scale is
at the end, as in table1-short. If the paper's file in privrl_bench/papers describes the item, only its runs are
taken, else all finished runs. The folder receives runs.csv, curves.csv.gz (if runs have evaluations) and, made
from these, table.md and figure.svg or figure.png, whichever is smaller. Without run folders, table and figure
are made from the existing store.

Figures of hundreds of runs until a task is solved (`dp-rl`) are made from returns.csv.gz, which has the returns
of each run as means of ten episodes, in place of curves.csv.gz; figures of final errors (`gpope`) have the last
evaluation of each run. Items that share runs have one store, in the folder of the item that `kept` or `like`
names in the paper's file.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from privrl_bench.papers.convergence import (
    RETURNS_FILE,
    by_setting,
    kept_runs,
    read_returns,
    rows_of,
    write_returns,
)
from privrl_bench.papers.items import (
    KINDS,
    Paper,
    PaperFigure,
    Setting,
    finished_runs,
    read_trivial,
    trivial_scores,
    write_trivial,
)
from privrl_bench.papers.paper_item import Item, write_item
from privrl_bench.papers.states import RANGES_FILE
from privrl_bench.reporting.plots import curves, not_drawn, return_against_epsilon
from privrl_bench.reporting.run_loader import (
    RUNS_FILE,
    load_runs,
    read_results,
    runs_file,
    write_results,
)
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.tables import markdown, summarise

PAPERS = Path(__file__).parents[1]
SCALES = ("smoke", "short", "paper")
NOT_DRAWN = "No figure: the evaluations within the runs were not kept."


def paper_item(folder: Path, seeds: int | None = None) -> tuple[Paper, Item] | None:
    """The item of a paper whose results are in `folder`, None if no paper's file describes it."""
    path = PAPERS / f"{folder.parent.name}.yaml"
    if not path.exists():
        return None
    paper = Paper(path)
    name, _, scale = folder.name.rpartition("-")
    if scale not in SCALES or name not in paper.items():
        name, scale = folder.name, "paper"
    if name not in paper.items():
        return None
    return paper, paper.item(name, scale, seeds).replaced(Setting.calibrated)


def collect(roots: list[Path], folder: Path, seeds: int | None, add: bool = False) -> int:
    """Write an item from run folders; with `add`, beside what it has. Returns the number of runs."""
    kept = read_results(folder) if add and runs_file(folder).exists() else []
    runs: dict[str, Run] = {run.folder.relative_to(folder).as_posix(): run for run in kept}
    for root in roots:
        for run in load_runs(root):
            key = run.folder.relative_to(root).as_posix()
            if run.state != "done":
                print(f"left out, {run.state}: {run.folder}")
            elif key in runs:
                raise SystemExit(f"error: {key} is in two of the folders, or in the store already")
            else:
                runs[key] = run
    found = paper_item(folder, seeds)
    if found:
        check_own(folder, found[1])
        settings = found[1].settings()
        keys = [setting.key(seed) for setting in settings for seed in setting.each_seed()]
        runs = {key: runs[key] for key in keys if key in runs}
        scores = trivial_scores(found[1])
        if scores:
            folder.mkdir(parents=True, exist_ok=True)
            write_trivial(scores, folder)
    if not runs:
        raise SystemExit(
            f"error: no finished run of {folder.name} in {', '.join(map(str, roots))}; give the folder `runs` "
            "of a reproduction, and name the item <item>-<scale> unless the scale is paper"
        )
    if small := small_item(folder, seeds):
        rows = read_returns(folder) if kept else []
        rows += [run for root in roots for run in kept_runs(small, finished_runs(root, small))]
        rows = rows_of(small, by_setting(small, sorted(rows, key=lambda run: run.seed)))
        folder.mkdir(parents=True, exist_ok=True)
        write_returns(rows, folder)
        runs = {key: replace(run, metrics=[]) for key, run in runs.items()}
    if found and isinstance(found[1], PaperFigure) and (metric := found[1].last_of):
        for key, run in runs.items():
            last = [row for row in run.metrics if metric in row][-1:]
            runs[key] = replace(run, metrics=last)
    write_results(runs, folder)
    return len(runs)


def small_item(folder: Path, seeds: int | None = None) -> PaperFigure | None:
    """The figure, if it is one of those with runs whose curves are kept as means."""
    found = paper_item(folder, seeds)
    if found and isinstance(found[1], PaperFigure) and found[1].small and found[1].settings():
        return found[1]
    return None


def kept_in(folder: Path, item: Item) -> Path:
    """The folder with the runs of an item, of the same scale."""
    if not isinstance(item, PaperFigure) or "kept" not in item.facts:
        return folder
    scale = next((f"-{scale}" for scale in SCALES if folder.name.endswith(f"-{scale}")), "")
    return folder.parent / f"{item.facts['kept']}{scale}"


def check_own(folder: Path, item: Item) -> None:
    """Raise SystemExit if the runs of an item are kept with another one."""
    if (store := kept_in(folder, item)) != folder:
        raise SystemExit(f"error: the runs of {folder.name} are kept in {store}; collect that item")


def report_small(folder: Path, item: PaperFigure, out: Path) -> None:
    """Write table.md and the figure from returns.csv.gz."""
    store = kept_in(folder, item)
    if not (store / RETURNS_FILE).exists():
        raise SystemExit(f"error: no {RETURNS_FILE} in {store}; name the run folders to collect")
    out.mkdir(parents=True, exist_ok=True)
    kind, runs = KINDS[item.kind], by_setting(item, read_returns(store))
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        assert kind.draw is not None
        kind.draw(item, runs, made / "figure.png")
        (made / "table.md").write_text(item.table_text(*kind.numbers(item, runs)), encoding="utf-8")
        copy_results(made, out)


def copy_results(made: Path, out: Path) -> None:
    """Copy the table, what is kept of runs, and the smaller form of the figure."""
    for file in ("table.md", RANGES_FILE):
        if (made / file).exists():
            shutil.copyfile(made / file, out / file)
    if (made / "figure.png").exists():
        for old in out.glob("figure.*"):
            old.unlink()
        kinds = (made / f"figure{kind}" for kind in (".png", ".svg"))
        small = min((path for path in kinds if path.exists()), key=lambda path: path.stat().st_size)
        shutil.copyfile(small, out / small.name)


def drawn_from_table(item: Item, folder: Path, out: Path) -> bool:
    """Draw an item's figure from its committed table. Returns whether it has one from which it can be drawn."""
    table = folder / "table.md"
    if not isinstance(item, PaperFigure) or not table.exists():
        return False
    return item.draw_from_table(table.read_text(), out)


def report(folder: Path, out: Path) -> None:
    """Write table.md and the figure from an item's store into `out`; without runs, a figure from table.md."""
    if small := small_item(folder):
        report_small(folder, small, out)
        return
    found = paper_item(folder)
    store = kept_in(folder, found[1]) if found else folder
    if not runs_file(store).exists() and (not found or found[1].settings()):
        if found and drawn_from_table(found[1], folder, out):
            return
        raise SystemExit(f"error: no {RUNS_FILE} in {store}; name the run folders to collect")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        if found:
            paper, item = found
            runs = finished_runs(store, item)
            if isinstance(item, PaperFigure):  # a panel is drawn once all of its lines have runs
                panels = [one for one in item.panels if all(x.runs(runs) for x in one.lines)]
                for one in item.panels:
                    if one not in panels:
                        print(f"left out of table and figure, a line has no runs: {one.label}")
                if item.panels and not panels:
                    raise SystemExit(f"error: no row of {store} is a run of {folder.name}")
                item = replace(item, panels=panels)
            write_item(item, paper.title, made, runs, read_trivial(folder))
            if not item.complete(runs):
                (made / "figure.png").unlink(missing_ok=True)
                with (made / "table.md").open("a") as file:
                    file.write(f"\n{NOT_DRAWN}\n")
        else:
            every = read_results(folder)
            (made / "table.md").write_text(markdown(summarise(every)))
            draw = curves if any(len(run.curve()[0]) for run in every) else return_against_epsilon
            if reason := not_drawn(every):
                print(f"{folder}: {reason}")
            else:
                draw(every, made / "figure.png")
        copy_results(made, out)


def main() -> None:
    """Collect, and report."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="*", metavar="DIR", help="with run folders")
    parser.add_argument("--item", type=Path, required=True, help="outputs/paper/<paper>/<item>")
    parser.add_argument("--seeds", type=int, help="instead of the scale's number")
    parser.add_argument("--add", action="store_true", help="keep the runs that the item has")
    options = parser.parse_args()
    if missing := [str(one) for one in options.folders if not one.is_dir()]:
        parser.error(f"DIR: no folder {missing[0]}")
    if options.folders:
        count = collect(options.folders, options.item, options.seeds, options.add)
        print(f"{count} runs in {runs_file(options.item)}")
    report(options.item, options.item)


if __name__ == "__main__":
    main()
