"""The scripts do what their help says, on small inputs."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from privrl_bench.privacy import mechanisms, sampling

SCRIPTS = Path(__file__).parent.parent / "scripts"


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
