"""The results store: it holds all that tables and figures read, and committed tables come from it."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest
from fake_runs import write_run, write_sweep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privrl_bench.papers.items import PaperFigure
from privrl_bench.papers.pages import collect_results
from privrl_bench.papers.paper_item import Line, Panel
from privrl_bench.reporting import run_loader
from privrl_bench.reporting.run_loader import (
    by_key,
    load_run,
    load_runs,
    read_results,
    write_results,
)
from privrl_bench.reporting.runs import Run, usable
from privrl_bench.reporting.table_writer import compact, parsed
from privrl_bench.reporting.tables import exact, markdown, summarise

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "outputs" / "paper"

numbers = st.floats(width=64) | st.integers(-(10**12), 10**12).map(float)
texts = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
leaves = st.none() | st.booleans() | st.floats(allow_nan=False) | texts | st.lists(st.integers())
points = st.lists(st.tuples(st.integers(0, 10**9), numbers, numbers), max_size=5)


@st.composite
def a_run(draw) -> Run:
    names = draw(st.lists(texts.filter(lambda t: ":" not in t and ";" not in t), max_size=2))
    summary = {
        "measure": draw(st.sampled_from(["return", "mspbe"])),
        "epsilon": draw(numbers),
        "delta": draw(st.floats(0, 1)),
        "epsilon_paper": draw(numbers),
        "guarantee": {
            "status": draw(texts),
            "unit": draw(st.sampled_from(["simulated user", "user"])),
            "caveats": names,
        },
        "steps": draw(st.integers(0, 10**12)),
        "steps_per_second": draw(numbers),
        "ledger": {"rounds": draw(st.integers(0, 10**6))},
    }
    summary[summary["measure"]] = {"mean": draw(numbers), "last_fifth": {"mean": draw(numbers)}}
    run = Run(Path("x"), status={"status": "done"}, summary=summary)
    run.config = {
        "algo": {"name": draw(st.sampled_from("ab")), "lr": draw(leaves)},
        "env": {"name": draw(st.sampled_from("cd"))},
        "privacy": {"z": draw(st.floats(0, 9)), "mechanism": draw(st.sampled_from(["none", "g"]))},
        "seed": draw(st.integers(0, 99)),
    }
    if run.config["algo"]["name"] == "b":  # runs of one task have the same settings
        run.config["extra"] = draw(leaves)
    run.overrides = draw(st.lists(texts.map(lambda t: f"a={t}"), max_size=3))
    run.provenance = {"commit": draw(st.text("0123456789abcdef")), "dirty": draw(st.booleans())}
    if draw(st.booleans()):  # earlier runs have neither
        run.provenance["processor"] = draw(texts)
        run.provenance["versions"] = {"torch": draw(texts), "numba": draw(texts)}
        run.provenance["trained_together"] = draw(st.integers(1, 64))
    run.digest = "v1:0"
    run.metrics = [
        {"steps": step, run.measure.metric: value, "privacy/epsilon": epsilon, "eval/kl": epsilon}
        for step, value, epsilon in draw(points)
    ]
    run.metrics += [
        {"steps": step, "train/return_mean": value, "train/episodes": count}
        for step, value, count in draw(
            st.lists(st.tuples(st.integers(0, 10**12), numbers, st.integers(0, 9)), max_size=3)
        )
    ]
    return run


def test_the_training_return_is_of_the_episodes_that_ended_in_the_last_tenth() -> None:
    rows = [(900, 7.0, 5), (950, 1.0, 1), (960, math.nan, 0), (1000, 4.0, 3)]
    run = Run(Path("x"), summary={"steps": 1000, "guarantee": {"unit": "one simulated user"}})
    run.metrics = [
        {"steps": at, "train/return_mean": value, "train/episodes": count}
        for at, value, count in rows
    ]
    assert run.training_return == (1.0 + 3 * 4.0) / 4
    real = Run(Path("x"), summary={"steps": 1000, "guarantee": {"unit": "one user"}})
    real.metrics = run.metrics
    assert math.isnan(real.training_return)
    run.metrics = run.metrics[:1]
    assert math.isnan(run.training_return)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(st.lists(a_run(), max_size=4), st.sampled_from([1, 1000]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path, monkeypatch, runs, long) -> None:
    monkeypatch.setattr(run_loader, "_LONG", long)
    named = {f"{run.algo}/{at}": run for at, run in enumerate(runs)}
    write_results(named, tmp_path)
    first = [p.read_bytes() for p in sorted(tmp_path.iterdir())]
    assert (tmp_path / "runs.csv").exists() != (tmp_path / "runs.csv.gz").exists()
    assert (tmp_path / "runs.csv").exists() == (len(runs) <= long)
    (tmp_path / "runs.csv.orig").write_text("run\nx\n")  # of a merge: not a store's file
    assert len(load_runs(tmp_path)) == len(runs)
    (tmp_path / "runs.csv.orig").unlink()
    found = read_results(tmp_path)
    assert [run.folder.relative_to(tmp_path).as_posix() for run in found] == list(named)
    for was, run in zip(runs, found, strict=True):
        assert (run.algo, run.env, run.seed, run.z) == (was.algo, was.env, was.seed, was.z)
        assert (run.state, run.overrides, run.provenance) == ("done", was.overrides, was.provenance)
        assert (run.guarantee_status, run.caveats) == (was.guarantee_status, was.caveats)
        assert run.measure is was.measure
        for key in ("epsilon", "delta", "epsilon_paper", "steps", "steps_per_second"):
            assert same(run.summary.get(key, math.nan), was.summary[key])
        assert same(run.final_value, was.final_value)
        assert same(run.training_return, was.training_return)
        assert same(run.evaluated("last_fifth", "mean"), was.evaluated("last_fifth", "mean"))
        for metric in (None, "privacy/epsilon", "eval/kl"):
            for mine, theirs in zip(run.curve(metric), was.curve(metric), strict=True):
                assert len(mine) == len(theirs)
                assert all(map(same, mine, theirs))
    assert markdown(summarise(found)) == markdown(summarise(renamed(named, tmp_path)))
    # What is read gives the same bytes again, so that a store can be collected from a store.
    write_results(dict(zip(named, found, strict=True)), tmp_path)
    assert [p.read_bytes() for p in sorted(tmp_path.iterdir())] == first


def renamed(runs: dict[str, Run], root: Path) -> list[Run]:
    """The runs with the folders that a store gives them: tables order by folder."""
    for key, run in runs.items():
        run.folder = root / key
    return list(runs.values())


def test_tables_and_figures_of_a_store_are_those_of_the_run_folders(tmp_path) -> None:
    write_sweep(tmp_path / "runs")
    runs = load_runs(tmp_path / "runs")
    named = {run.folder.relative_to(tmp_path / "runs").as_posix(): run for run in runs}
    write_results(named, tmp_path / "store")
    stored = load_runs(tmp_path / "store")
    assert markdown(summarise(stored)) == markdown(summarise(runs))
    assert exact(summarise(stored)) == exact(summarise(runs))
    lines = [Line("z = 1", True, ["a"]), Line("PPO", False, ["b"])]
    for kind in ("curves", "epsilon", "spent"):
        picture = PaperFigure("A figure", kind, [Panel("CartPole", lines)])
        for name, source in (("folders", tmp_path / "runs"), ("store", tmp_path / "store")):
            get = by_key(source)
            chosen = {
                setting: [get(f"{prefix}/seed{seed}") for seed in range(4)]
                for setting, prefix in (("a", "z1.0"), ("b", "ppo"))
            }
            assert picture.complete(chosen)
            (tmp_path / name).mkdir(exist_ok=True)
            picture.write(tmp_path / name, chosen, {})
        for file in ("figure.png", "figure.svg", "table.md"):
            assert (tmp_path / "folders" / file).read_bytes() == (
                tmp_path / "store" / file
            ).read_bytes()


def test_unfinished_runs_are_not_stored_and_unknown_keys_are_no_runs(tmp_path) -> None:
    run = load_run(write_run(tmp_path / "cut", status="interrupted"))
    with pytest.raises(ValueError, match="not finished: cut"):
        write_results({"cut": run}, tmp_path / "store")
    write_results({}, tmp_path / "store")
    assert by_key(tmp_path / "store")("cut").state == "unreadable"
    assert usable(load_runs(tmp_path / "store")) == []


def test_a_row_has_processor_versions_and_group_of_its_provenance_and_old_rows_none(
    tmp_path,
) -> None:
    made = {
        "commit": "509cd63",
        "processor": "a processor",
        "versions": {"torch": "2.1", "numpy": "2.0", "numba": "0.6", "mujoco": None, "wandb": "1"},
        "trained_together": 8,
    }
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"seed={seed}", seed=seed)
    (tmp_path / "runs" / "seed=0" / "provenance.json").write_text(json.dumps(made))
    runs = {run.folder.name: run for run in load_runs(tmp_path / "runs")}
    write_results(runs, tmp_path / "store")
    with (tmp_path / "store" / "runs.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    columns = ("processor", "torch", "numpy", "numba", "mujoco", "trained_together")
    assert [first[name] for name in columns] == ["a processor", "2.1", "2.0", "0.6", "", "8"]
    assert not any(second[name] for name in columns)


def test_a_digest_is_of_the_recorded_identity(tmp_path) -> None:
    found = []
    for seed in (0, 1):
        folder = write_run(tmp_path / f"{seed}", seed=seed)
        assert load_run(folder).digest == ""
        (folder / "identity.json").write_text(json.dumps({"version": 2, "seed": seed}))
        found.append(load_run(folder).digest)
    assert found[0] != found[1]
    assert all(re.fullmatch("v2:[0-9a-f]{16}", one) for one in found)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("item", ["dppg/table1", "dppg/fig2", "dppg/control", "primorl/table1"])
def test_committed_tables_are_made_from_the_store(tmp_path, item) -> None:
    collect_results.report(PAPER / item, tmp_path)
    assert (tmp_path / "table.md").read_text() == (PAPER / item / "table.md").read_text()


def test_no_run_folders_and_few_files_are_committed() -> None:
    files = [path for path in PAPER.rglob("*") if path.is_file()]
    assert len(files) <= 120
    assert sum(path.stat().st_size for path in files) <= 8e6
    assert not [path for path in files if path.name in ("status.json", "index.html")]


def test_markdown_tables_are_read_back() -> None:
    assert parsed(compact(["a", "b"], [["1", "x y"], ["", "2"]])) == [
        {"a": "1", "b": "x y"},
        {"a": "", "b": "2"},
    ]
