"""The scripts do what their help says, on small inputs."""

import json
import sys
from pathlib import Path

import pytest
from helpers import load_script

from privrl_bench.privacy import mechanisms, sampling
from privrl_bench.reporting.runs import Run


def call(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    load_script(name).main()


@pytest.mark.slow
def test_bench_speed_compares_speeds_with_a_plain_loop(tmp_path, monkeypatch, capsys):
    words = ("--envs", "cartpole", "--repeats", 1, "--seconds", 0.05, "--out", tmp_path / "a.json")
    call(monkeypatch, "bench_speed", "speeds", *words)
    speeds = json.loads((tmp_path / "a.json").read_text())["speeds"]["cartpole"]
    assert {"gymnasium", "slots", "dppg", "dppg, 8 replicas"} <= set(speeds)
    assert all(row["steps_per_second"] > 0 for row in speeds.values())
    assert speeds["gymnasium"]["ratio"] == 1.0
    assert "dppg, paper's cohort" in capsys.readouterr().out


@pytest.mark.slow
def test_bench_speed_compares_workers_on_any_algorithm(tmp_path, monkeypatch):
    words = ("--envs", "cartpole", "--repeats", 1, "--seconds", 0.05, "--out", tmp_path / "a.json")
    more = ("env.user_steps=16", "privacy.users_per_round=4")
    call(monkeypatch, "bench_speed", "workers", *words, *more)
    rows = json.loads((tmp_path / "a.json").read_text())["workers"]["cartpole"]
    assert list(rows) == ["1", "2"]
    assert rows["2"]["ratio"] > 0


def test_the_reference_shows_the_names_of_a_registry():
    page = load_script("reference_pages").configuration()
    for key, names in (("mechanism", mechanisms.names()), ("sampling", sampling.names())):
        assert f"| `privacy.{key}` | {', '.join(f'`{name}`' for name in names)} |" in page


def test_the_comparison_with_another_library_names_what_is_missing(tmp_path, monkeypatch, capsys):
    real = load_script("compare_sb3")
    monkeypatch.setattr(real.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["compare_sb3", "--steps", "1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        real.main()
    assert end.value.code == 2
    assert "pip install stable-baselines3" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_comparison_with_another_library_skips_what_is_there(tmp_path, monkeypatch):
    words = ("--steps", 2048, "--seeds", 1, "--only", "ppo/privrl_bench", "--out", tmp_path)
    for _ in range(2):
        call(monkeypatch, "compare_sb3", *words)
    assert len((tmp_path / "returns.csv").read_text().splitlines()) == 4
    assert "| cartpole | ppo | 2048 | drawn |" in (tmp_path / "table.md").read_text()


def test_a_row_that_is_run_again_is_equal_inside_or_differs():
    real = load_script("rerun_rows")

    def run(value, processor="a"):
        made = {"processor": processor, "versions": {"torch": "1"}, "trained_together": 2}
        summary = {"measure": "return", "return": {"mean": value}}
        return Run(Path("x"), {"status": "done"}, summary=summary, provenance=made)

    seeds = [1.0, 2.0, 3.0]
    found = [real.compared(run(2.0), run(now), seeds)[3] for now in (2.0, 2.000001, 5.0, 8.0)]
    assert found == ["equal", "rounding", "inside", "differs"]
    found = [
        real.compared(run(2.0), run(2.0, now), seeds)[4] for now in ("a (family 6, model 1)", "b")
    ]
    assert found == ["as stated", "other"]
    was, now = run(2.0), run(2.0)
    was.digest, now.digest = "v2:1", "v2:2"
    assert real.compared(was, now, seeds)[3] == "other settings"


BAD = (("rerun_rows", "nothing", "ITEM"), ("rerun_rows", "nothing --count=0", "--count"))
BAD += (("rerun_rows", "outputs/paper/dppg/metric --run=ppo", "--run"),)
BAD += (("compare_sb3", "--only=cartpol/ppo", "--only"), ("compare_sb3", "--seeds=0", "--seeds"))


@pytest.mark.parametrize(("name", "word", "key"), BAD)
def test_a_bad_word_is_one_line_before_any_run(name, word, key, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        call(monkeypatch, name, *word.split())
    assert end.value.code == 2
    assert f"error: {key}: " in capsys.readouterr().err
