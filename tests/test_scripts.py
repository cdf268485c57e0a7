"""The scripts do what their help says, on small inputs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    load(name).main()


def test_bench_speed_measures_both_loops(tmp_path, monkeypatch, capsys):
    out = tmp_path / "speed.json"
    options = ["--envs", "cartpole", "--repeats", 1, "--seconds", 0.2, "--out", out]
    call(monkeypatch, "bench_speed", *options)
    (row,) = json.loads(out.read_text())
    assert row["environments_alone_steps_per_second"] > 0
    assert row["dppg_steps_per_second"] > 0
    assert sum(row["share"].values()) == pytest.approx(1.0)
    assert "ratio" in capsys.readouterr().out


def test_calibration_prints_constants_of_the_right_length(monkeypatch, capsys):
    call(monkeypatch, "calibrate_scaling", "env=cartpole", "total_steps=2048")
    lines = dict(
        line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line
    )
    assert len(json.loads(lines["obs_mean"])) == len(json.loads(lines["obs_std"])) == 4
    assert float(lines["reward_scale"]) > 0


def test_collected_results_hold_no_ledger_policy_or_checkpoint(tmp_path, monkeypatch):
    source = tmp_path / "outputs" / "dppg" / "cartpole" / "seed=0"
    source.mkdir(parents=True)
    module = load("collect_results")
    for name in (*module.KEPT, "ledger.jsonl", "checkpoint.pt", "policy.pt"):
        (source / name).write_text("{}")
    (source / "status.json").write_text('{"status": "done"}')
    running = source.parent / "seed=1"
    running.mkdir()
    (running / "status.json").write_text('{"status": "running"}')
    target = tmp_path / "outputs" / "paper" / "x"
    call(monkeypatch, "collect_results", tmp_path / "outputs", target)
    found = {p.name for p in target.rglob("*") if p.is_file()}
    assert found == set(module.KEPT)
    assert not (target / "dppg" / "cartpole" / "seed=1").exists()
