"""The committed form of results: what is collected from run folders, and made again from the store."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import pytest
from reporting.fake_runs import write_run

from privrl_bench.papers.convergence import read_returns
from privrl_bench.papers.items import PaperFigure, Setting, paper
from privrl_bench.papers.pages import collect_results as module
from privrl_bench.papers.paper_item import Line, Panel
from privrl_bench.reporting.run_loader import read_results


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["collect_results", *map(str, arguments)])
    module.main()


def test_collected_results_are_a_table_of_finished_runs(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "seed=0")
    write_run(tmp_path / "runs" / "seed=1", seed=1, status="running")
    item = tmp_path / "paper" / "x"
    call(monkeypatch, tmp_path / "runs", "--item", item)
    files = {path.name for path in item.iterdir()}
    assert {"runs.csv", "curves.csv.gz", "table.md"} < files
    assert len(files) == 4  # and one of figure.svg and figure.png
    assert len((item / "runs.csv").read_text().splitlines()) == 2
    made = {path.name: path.read_bytes() for path in item.iterdir()}
    call(monkeypatch, "--item", item)  # from the store, nothing changes
    assert {path.name: path.read_bytes() for path in item.iterdir()} == made
    with pytest.raises(SystemExit, match=r"no runs\.csv"):
        call(monkeypatch, "--item", "outputs/paper/primorl/fig9-short")
    with pytest.raises(SystemExit, match=r"no returns\.csv\.gz"):
        call(monkeypatch, "--item", "outputs/paper/dp-rl/fig3-smoke")


def test_of_runs_until_a_task_is_solved_curves_are_kept_as_means(tmp_path, monkeypatch):
    words = ["algo=reinforce", "+paper=reinforce", "privacy=none", "eval.solved=475"]
    setting = Setting("cartpole", tuple(words), 2)
    facts = {"window": 2, "target": 300, "held": 500, "episodes": 11}
    panels = [Panel("CartPole", [Line("no noise", False, [setting])])]
    item = PaperFigure("T", "held", panels, facts)
    monkeypatch.setattr(module, "paper_item", lambda folder, seeds=None: (paper("dp-rl"), item))
    for part, seed in (("one", 0), ("two", 1)):  # trained in two places
        write_run(tmp_path / part / setting.key(seed), seed=seed, final=500.0)

    collect = partial(call, monkeypatch)
    roots, folder = [tmp_path / "one", tmp_path / "two"], tmp_path / "fig2"
    collect(*roots, "--item", folder)
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"table.md", "runs.csv", "returns.csv.gz"} < set(made)
    assert len(made) == 4  # and one of figure.svg and figure.png
    assert len(read_returns(folder)) == 2
    for words in (["--item", folder], [roots[1], roots[0], "--item", folder]):  # nothing changes
        collect(*words)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    with pytest.raises(SystemExit, match="seed=0 is in two of the folders"):
        collect(roots[0], roots[0], "--item", folder)
    with pytest.raises(SystemExit, match="no finished run"):
        collect(tmp_path, "--item", folder)
    with pytest.raises(SystemExit, match="2"):
        collect(tmp_path / "three", "--item", folder)
    collect(roots[1], "--item", folder)  # later the other seed
    assert [run.seed for run in read_returns(folder)] == [1]
    collect(roots[0], "--item", folder, "--add")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    with pytest.raises(SystemExit, match="or in the store already"):
        collect(roots[0], "--item", folder, "--add")
    item = replace(item, kind="boxes", facts=facts | {"kept": "fig2"})  # shares the runs
    collect("--item", tmp_path / "fig3")
    assert (tmp_path / "fig3" / "table.md").read_bytes() == made["table.md"]
    with pytest.raises(SystemExit, match=r"runs of fig3 are kept in .*fig2; collect that item"):
        collect(roots[0], "--item", tmp_path / "fig3")


def test_of_final_errors_the_last_evaluation_is_kept(tmp_path, monkeypatch):
    setting = Setting("cartpole", ("algo=dppg", "privacy.z=1"), 1)
    panels = [Panel("CartPole", [Line("x", True, [setting])])]
    item = PaperFigure("T", "datasize", panels, {"metric": "eval/return_mean"})
    monkeypatch.setattr(module, "paper_item", lambda folder, seeds=None: (paper("gpope"), item))
    monkeypatch.setattr(module, "report", lambda *_: None)
    write_run(tmp_path / "runs" / setting.key(0), final=400.0)
    call(monkeypatch, tmp_path / "runs", "--item", tmp_path / "fig1")
    (run,) = read_results(tmp_path / "fig1")
    assert list(run.curve("eval/return_mean")[1]) == [400.0]
