"""The scripts do what their help says, on small inputs."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from reporting.fake_runs import write_run

from privrl_bench.papers.items import Paper, Setting
from privrl_bench.papers.kept_returns import read_returns
from privrl_bench.papers.paper_figure import PaperFigure
from privrl_bench.papers.paper_item import Line, Panel
from privrl_bench.privacy import mechanisms, sampling

SCRIPTS = Path(__file__).parent.parent / "scripts"
PAPER = Paper(SCRIPTS / "papers" / "dp-rl.yaml")


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    load(name).main()


@pytest.mark.slow
def test_bench_speed_measures_speeds_shares_growth_and_a_sweep(tmp_path, monkeypatch, capsys):
    words = ("--envs", "cartpole", "--repeats", 1, "--seconds", 0.05, "--out", tmp_path / "speed")
    words += ("--replicas", 1, 2, "--users", 2)
    real = load("bench_speed")
    monkeypatch.setattr(real, "SWEEP", ("seed=0,1", "total_steps=8192", "log=none"))
    monkeypatch.setattr(sys, "argv", ["bench_speed", *map(str, words)])
    real.main()
    found = json.loads((tmp_path / "speed" / "speed.json").read_text())
    speeds = found["speeds"]["cartpole"]
    assert {"gymnasium", "slots", "dppg", "dppg, 8 replicas"} <= set(speeds)
    assert all(row["steps_per_second"] > 0 for row in speeds.values())
    assert sum(found["shares"]["cartpole"].values()) == pytest.approx(1.0)
    assert 0 < found["shares"]["cartpole"]["user updates"] < 1
    assert [(row["replicas"], row["users"]) for row in found["scaling"]] == [(1, 2), (2, 2)]
    assert found["sweep"]["steps"] == 2 * 8192
    assert (tmp_path / "speed" / "speed.svg").stat().st_size > 10_000
    assert "times as fast" in capsys.readouterr().out


def test_a_part_inside_another_is_counted_once(monkeypatch):
    """Shares add up because an inner part's time is taken off the outer one."""
    module, clock = load("bench_speed"), [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    class Outer:
        def work(self):
            clock[0] += 2.0
            self.inner()
            clock[0] += 1.0

        def inner(self):
            clock[0] += 5.0

    with module.timed({"outer": [(Outer, "work")], "inner": [(Outer, "inner")]}) as spent:
        Outer().work()
        Outer().inner()
    assert spent == {"outer": 3.0, "inner": 10.0}


def test_calibration_prints_constants_of_the_right_length(monkeypatch, capsys):
    call(monkeypatch, "calibrate_scaling", "env=cartpole", "total_steps=2048")
    lines = dict(
        line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line
    )
    assert len(json.loads(lines["obs_mean"])) == len(json.loads(lines["obs_std"])) == 4
    assert float(lines["reward_scale"]) > 0


def test_collected_results_are_a_table_of_finished_runs(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "seed=0")
    write_run(tmp_path / "runs" / "seed=1", seed=1, status="running")
    item = tmp_path / "paper" / "x"
    call(monkeypatch, "collect_results", tmp_path / "runs", "--item", item)
    files = {path.name for path in item.iterdir()}
    assert {"runs.csv", "curves.csv.gz", "table.md"} < files
    assert len(files) == 4  # and one of figure.svg and figure.png
    assert len((item / "runs.csv").read_text().splitlines()) == 2
    made = {path.name: path.read_bytes() for path in item.iterdir()}
    call(monkeypatch, "collect_results", "--item", item)  # from the store, nothing changes
    assert {path.name: path.read_bytes() for path in item.iterdir()} == made
    with pytest.raises(SystemExit, match=r"no runs\.csv"):
        call(monkeypatch, "collect_results", "--item", "outputs/paper/primorl/fig9-short")
    with pytest.raises(SystemExit, match=r"no returns\.csv\.gz"):
        call(monkeypatch, "collect_results", "--item", "outputs/paper/dp-rl/fig3-smoke")


def test_of_runs_until_a_task_is_solved_little_is_kept(tmp_path, monkeypatch):
    module = load("collect_results")
    words = ["algo=reinforce", "+paper=reinforce", "privacy=none", "eval.solved=475"]
    setting = Setting("cartpole", tuple(words), 2)
    facts = {"window": 2, "target": 300, "held": 500, "episodes": 11}
    panels = [Panel("CartPole", [Line("no noise", False, [setting])])]
    item = PaperFigure("T", "held", panels, facts)
    monkeypatch.setattr(module, "paper_item", lambda folder, seeds=None: (PAPER, item))
    for part, seed in (("one", 0), ("two", 1)):  # trained in two places
        write_run(tmp_path / part / setting.key(seed), seed=seed, final=500.0)

    def collect(*arguments):
        monkeypatch.setattr(sys, "argv", ["collect_results", *map(str, arguments)])
        module.main()

    roots, folder = [tmp_path / "one", tmp_path / "two"], tmp_path / "fig2"
    collect(*roots, "--item", folder)
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"table.md", "returns.csv.gz"} < set(made)
    assert len(made) == 3  # and one of figure.svg and figure.png
    assert len(read_returns(folder)) == 2
    for words in (["--item", folder], [roots[1], roots[0], "--item", folder]):  # nothing changes
        collect(*words)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    with pytest.raises(SystemExit, match=r"seed 0 of CartPole, no noise is there already"):
        collect(roots[0], roots[0], "--item", folder)
    with pytest.raises(SystemExit, match="no finished run"):
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


def test_bench_rlhf_compares_one_by_one_with_all_at_once(monkeypatch, capsys):
    words = ["bench_rlhf", "--users", "2", "--repeats", "1", "algo.rank=1"]
    monkeypatch.setattr(sys, "argv", words)
    load("bench_rlhf").main()
    said = capsys.readouterr().out
    assert "small, 2 users, 1728 of 3072 numbers trained" in said
    assert float(said.rpartition(" ")[2]) < 1e-5


def test_bench_gpu_compares_rounds(monkeypatch, capsys):
    module = load("bench_gpu")
    monkeypatch.setitem(
        module.CASES, "small", "algo=dppg env=cartpole env.user_steps=16 privacy.users_per_round=4"
    )
    monkeypatch.setattr(sys, "argv", ["bench_gpu", "--rounds", "1", "--device", "cpu", "small"])
    module.main()
    assert re.fullmatch(
        r"small: cpu [\d.]+ s, cpu [\d.]+ s, cpu / cpu [\d.]+\n", capsys.readouterr().out
    )
    monkeypatch.setattr(sys, "argv", ["bench_gpu", "smal"])
    with pytest.raises(SystemExit):
        module.main()
    assert "no such case: smal" in capsys.readouterr().err


def test_the_reference_shows_the_names_of_a_registry():
    page = load("reference_pages").configuration()
    for key, names in (("mechanism", mechanisms.names()), ("sampling", sampling.names())):
        assert f"| `privacy.{key}` | {', '.join(f'`{name}`' for name in names)} |" in page
