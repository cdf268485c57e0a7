"""`privrl check-env`, and the short check before training."""

import json

import torch
import yaml
from helpers import exit_code

from privrl_bench.cli import main as privrl
from privrl_bench.cli import train
from privrl_bench.composition.compose import compose
from privrl_bench.training import describe

SMALL = [
    *("env=gym", "privacy.users_per_round=3", "algo.hidden=[4]", "rounds=2", "eval.episodes=1"),
    *("eval.every=0", "log=none"),
]


def trained(folder, *words):
    """Exit code of a small run."""
    return exit_code(train.main, [*SMALL, *words, f"hydra.run.dir={folder}"])


def test_exit_codes_and_json(capsys):
    assert privrl.main(["check-env", "my_pkg:MyEnv-v0", "--steps", "60"]) == 0
    shown = capsys.readouterr().out
    assert "determinism" in shown
    assert "Proposed: put this into DIR/env/myenv_v0.yaml" in shown
    assert "generic values for discrete actions" in shown
    assert shown.endswith("0 errors, 0 warnings\n")
    assert privrl.main(["check-env", "my_pkg:Broken-v0", "--steps", "60", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert {"severity", "check", "text"} == set(report["findings"][0])
    assert privrl.main(["check-env", "env=gym", "env.id=my_pkg:MyEnw-v0"]) == 2
    said = capsys.readouterr().err
    assert "(did you mean MyEnv-v0?): Environment `MyEnw` doesn't exist" in said
    assert said.lower().count("did you mean") == 1
    assert privrl.main(["check-env", "a", "b"]) == 2
    assert privrl.main(["check-env", "cartpole", "--steps", "0"]) == 2


def test_the_proposed_file_is_the_checked_environment_with_public_constants(tmp_path, capsys):
    words = ["my_pkg:Clock-v0", "+env.kwargs.spoiled=no", "--steps", "60"]
    assert privrl.main(["check-env", *words]) == 0
    shown = capsys.readouterr().out
    assert "\nProposed: put this into DIR/env/clock_v0.yaml, any folder DIR; " in shown
    assert "; then: privrl-bench --config-dir DIR env=clock_v0\n" in shown
    assert privrl.main(["check-env", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["yaml"] in shown
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "clock_v0.yaml").write_text(report["yaml"])
    own = compose(["env=clock_v0"], str(tmp_path)).env
    assert (own.id, own.kwargs) == ("my_pkg:Clock-v0", {"spoiled": "no"})
    assert (own.obs_scaling, own.reward_scaling) == ("public", "public")
    written = yaml.safe_load(report["yaml"])
    constants = (own.obs_mean, own.obs_std, own.reward_scale)
    assert constants == tuple(written[key] for key in ("obs_mean", "obs_std", "reward_scale"))
    assert privrl.main(["check-env", "clock_v0", "--config-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("clock_v0\n")


def test_nothing_is_proposed_for_a_file_that_exists(capsys):
    assert privrl.main(["check-env", "halfcheetah", "--steps", "30"]) == 0
    assert "Proposed" not in capsys.readouterr().out
    assert privrl.main(["check-env", "halfcheetah", "--steps", "30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["yaml"] is None


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
    assert "  check   128 random steps, played twice: nothing found\n" in shown
    assert (
        trained(tmp_path / "other", "env.id=my_pkg:DictObs-v0", "algo=reinforce", "plan_only=true")
        == 0
    )
    shown = capsys.readouterr().out
    assert "; they were not tuned for my_pkg:DictObs-v0\n" in shown


def test_the_check_changes_no_result(tmp_path, monkeypatch):
    found = []
    for name, words in (("with", ()), ("without", ("env.check=false",))):
        monkeypatch.setattr(describe, "_CHECKED", {})
        assert trained(tmp_path / name, "env.id=my_pkg:Clock-v0", *words) == 0
        found.append(torch.load(tmp_path / name / "policy.pt")["actor"])
    assert torch.equal(*found)
