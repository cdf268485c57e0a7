"""`privrl check-env`, and the short check before training."""

import json

import pytest
import torch

from privrl_bench.cli import main as privrl
from privrl_bench.cli import train
from privrl_bench.experiment import unknown_env

SMALL = [
    *("env=gym", "privacy.users_per_round=3", "algo.hidden=[4]", "rounds=2", "eval.episodes=1"),
    *("eval.every=0", "log=none"),
]


def trained(folder, *words):
    """Exit code of a small run."""
    with pytest.raises(SystemExit) as done:
        train.main([*SMALL, *words, f"hydra.run.dir={folder}"])
    return done.value.code


def test_exit_codes_and_json(capsys):
    assert privrl.main(["check-env", "my_pkg:MyEnv-v0", "--steps", "60"]) == 0
    shown = capsys.readouterr().out
    assert "determinism" in shown
    assert "Proposed public scaling" in shown
    assert "generic values for discrete actions" in shown
    assert shown.endswith("0 errors, 0 warnings\n")
    assert privrl.main(["check-env", "my_pkg:Broken-v0", "--steps", "60", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert {"severity", "check", "text"} == set(report["findings"][0])
    assert privrl.main(["check-env", "env=gym", "env.id=my_pkg:MyEnw-v0"]) == 2
    assert "did you mean MyEnv-v0?" in capsys.readouterr().err
    assert privrl.main(["check-env", "a", "b"]) == 2
    assert privrl.main(["check-env", "cartpole", "--steps", "0"]) == 2


def test_training_on_non_finite_rewards_is_refused_in_one_line(tmp_path, capsys):
    out = tmp_path / "run"
    assert trained(out, "env.id=my_pkg:Broken-v0") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: env.id: my_pkg:Broken-v0: ")
    assert "observations are not finite" in error
    assert error.count("\n") == 1
    assert not out.exists()
    assert trained(out, "env.id=my_pkg:Broken-v0", "env.check=false", "plan_only=true") == 0


def test_the_plan_says_what_was_found(tmp_path, capsys):
    assert trained(tmp_path / "run", "env.id=my_pkg:Clock-v0", "plan_only=true") == 0
    shown = capsys.readouterr().out
    assert "  spaces  observations: Box [2] (float64); actions: Discrete 3\n" in shown
    assert "  scaling observations none, rewards none\n" in shown
    assert "  check   128 random steps, played twice: nothing found\n" in shown
    assert (
        trained(tmp_path / "other", "env.id=my_pkg:DictObs-v0", "algo=reinforce", "plan_only=true")
        == 0
    )
    shown = capsys.readouterr().out
    assert "Dict (a: Box [2] (float32), b: Discrete 3 (one-hot)), flattened to 5 numbers" in shown
    assert "; nobody tuned them for my_pkg:DictObs-v0\n" in shown


def test_the_check_changes_no_result(tmp_path, monkeypatch):
    found = []
    for name, words in (("with", ()), ("without", ("env.check=false",))):
        monkeypatch.setattr(unknown_env, "_CHECKED", {})
        assert trained(tmp_path / name, "env.id=my_pkg:Clock-v0", *words) == 0
        found.append(torch.load(tmp_path / name / "policy.pt")["actor"])
    assert torch.equal(*found)
