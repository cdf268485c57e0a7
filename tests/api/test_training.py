"""Runs from Python: what the command line does, with exceptions instead of exit codes."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

import privrl_bench as pb
from privrl_bench.api.training import words_of
from privrl_bench.cli.train import main
from privrl_bench.composition.compose import compose

TINY = (
    "algo=dppg env=cartpole rounds=2 privacy.users_per_round=4 env.user_steps=16 algo.hidden=[8] "
    "algo.epochs=1 eval.episodes=2 eval.every=0 log=none log.plot=false"
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_that_of_the_command_line(capsys):
    run = pb.run(TINY, privacy={"z": 2}, quiet=True)
    assert capsys.readouterr().out == ""
    assert (run.state, run.guarantee_status, run.z) == ("done", "formal", 2.0)
    assert run.folder == Path("outputs/dppg/cartpole").absolute() / run.folder.name
    assert math.isfinite(run.final_value)
    assert run.epsilon == pytest.approx(1.9939, rel=1e-3)
    assert "dppg on cartpole, done" in repr(run)
    before = (run.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit) as leaving:  # the same words find the same folder
        main([*TINY.split(), "privacy.z=2"])
    assert leaving.value.code == 0
    assert "skipped" in capsys.readouterr().out
    again = pb.run([*TINY.split(), "privacy.z=2"], quiet=True)
    assert again.folder == run.folder
    assert (run.folder / "metrics.jsonl").read_bytes() == before
    assert repr(pb.load_run(run.folder)) == repr(again)


def test_a_sweep_returns_its_runs_in_order():
    runs = pb.multirun(TINY, seed=range(2), privacy={"z": (1, 2)}, quiet=True)
    assert [(run.z, run.seed) for run in runs] == [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1)] or [
        (run.seed, run.z) for run in runs
    ] == [(0, 1.0), (0, 2.0), (1, 1.0), (1, 2.0)]
    assert {run.state for run in runs} == {"done"}


def test_bad_words_are_one_line(here):
    with pytest.raises(pb.ConfigError, match="did you mean hopper") as caught:
        pb.run("algo=dppg env=hoper")
    assert "\n" not in str(caught.value)
    assert not list(here.iterdir())


def test_a_failed_run_raises_with_its_folder(monkeypatch):
    from privrl_bench.training.trainer import Trainer

    monkeypatch.setattr(Trainer, "step", lambda self: 1 / 0)
    with pytest.raises(pb.RunFailed, match="ZeroDivisionError") as caught:
        pb.run(TINY, quiet=True)
    assert caught.value.status == "failed"
    assert pb.load_run(caught.value.folder).state == "failed"
    assert "ZeroDivisionError" in pb.load_run(caught.value.folder).reason


def test_an_interrupted_run_is_a_keyboard_interrupt_and_resumes(monkeypatch):
    from privrl_bench.training.trainer import Trainer

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            pb.run(TINY, quiet=True)
    assert isinstance(caught.value, pb.RunInterrupted)
    assert pb.run(TINY, quiet=True).folder == caught.value.folder


def test_words_of_a_call():
    found = words_of(
        ["algo=dppg"], {"algo": {"hidden": [8, 8]}, "log": "none", "resume": None, "a": True}
    )
    assert found == ["algo=dppg", "algo.hidden=[8,8]", "log=none", "resume=null", "a=true"]
    assert words_of("", {"seed": range(3)}) == ["seed=0,1,2"]
    wrappers = [{"name": "wrappers_pkg:Twice", "k": 3.5}, "wrappers_pkg:Total"]
    words = words_of("env=gym env.id=CartPole-v1", {"env": {"wrappers": wrappers}})
    assert compose(words).env.wrappers == wrappers


def test_no_run_folder(here):
    with pytest.raises(pb.ConfigError, match=r"is not a run folder$"):
        pb.load_run(here)
    for name in "ab":
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "status.json").write_text("{}")
    for load in (pb.load_run, pb.load_policy, pb.explain):
        with pytest.raises(pb.ConfigError, match=r"runs is not a run folder; it has 2, e.g. .*/a$"):
            load(here / "runs")


def test_names_of_the_package():
    assert set(pb.__all__) <= set(dir(pb))
    for name in pb.__all__:
        assert getattr(pb, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        pb.rum  # noqa: B018


@pytest.mark.slow
def test_a_script_needs_no_main_guard(here):
    """Two workers start processes, which do not run the script again."""
    script = here / "script.py"
    script.write_text(
        "import privrl_bench as pb\n"
        "print('begun')\n"
        f"run = pb.run({TINY!r}, hardware={{'workers': 2}}, quiet=True)\n"
        "print(run.state)\n"
    )
    done = subprocess.run(
        [sys.executable, script.name], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["begun", "done"]
