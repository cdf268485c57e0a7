"""Trained policies: files that describe themselves, acting, evaluation, export."""

import importlib.util
import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers import LEARNERS

import privrl_bench as pb
from privrl_bench.cli.main import main
from privrl_bench.composition.compose import compose
from privrl_bench.functional.rng import Streams
from privrl_bench.training.plan import make_plan
from privrl_bench.training.results import policy_content
from privrl_bench.training.trained_policy import read_policy
from privrl_bench.training.trainer import Trainer


@pytest.mark.fast_every(10)
@pytest.mark.parametrize("name", LEARNERS)
def test_acting_in_a_plain_environment_gives_the_evaluated_returns(name, trained):
    folder = trained(name)
    policy = pb.load_policy(folder)
    found = pb.evaluate(folder, episodes=3, greedy=True, seed=5)
    env = gym.make(policy.file.env["id"], max_episode_steps=policy.file.spec.max_episode_steps)
    for episode, wanted in enumerate(found.returns):
        seed = Streams(5).episode_seed("eval_env", 0, episode)
        policy.reset()
        obs, over, total = env.reset(seed=seed)[0], False, 0.0
        while not over:
            action = policy.act(obs, greedy=True)
            assert env.action_space.contains(action), (name, action)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        assert total == pytest.approx(wanted, rel=1e-4), name
    env.close()


@pytest.mark.parametrize(
    "words",
    [
        "env.obs_scaling=private env.reward_scaling=private env.obs_mean=[0.1,0,0,0] env.obs_std=[1,2,0.1,1]",
        "env.obs_scaling=public env.obs_mean=[0.1,0,0,0] env.obs_std=[1,2,0.1,1]",
        "env.obs_scaling=none",
        "env.obs_scaling=running env.user=segment",
    ],
)
def test_the_file_scales_as_training_did(words, tmp_path):
    run = compose(
        ["algo=dppg", "env=cartpole", "algo.hidden=[8]", "rounds=3", "privacy.users_per_round=4",
         "log=none", *words.split()]
    )  # fmt: skip
    session = Trainer(make_plan([run]))
    for _ in range(3):
        session.step()
    session.collector.scaler.use(session.parts.algo.scaling(session.state))
    wanted = session.collector.scaler.frozen()
    content = policy_content(session, 0)
    content["guarantee"] = session.parts.gate.guarantee(0).to_dict()
    torch.save(content, tmp_path / "policy.pt")
    session.close()
    found = read_policy(tmp_path / "policy.pt")
    obs = np.random.default_rng(0).normal(size=(1, 5, 4))
    np.testing.assert_allclose(found.scaling.obs(obs), wanted.obs(obs), rtol=1e-12)
    assert found.guarantee["epsilon"] == pytest.approx(content["guarantee"]["epsilon"])
    assert found.spec == session.parts.spec or found.spec.action_low is not None


def test_single_observations_batches_and_seeds(trained):
    policy = pb.load_policy(trained("gaussian"), seed=3)
    obs = np.random.default_rng(0).normal(size=(6, 3))
    one, many = policy.act(obs[0], greedy=True), policy.act(obs, greedy=True)
    assert one.shape == (1,)
    assert many.shape == (6, 1)
    np.testing.assert_allclose(many[0], one, rtol=1e-5)
    assert policy.act(list(obs[0]), greedy=True) == pytest.approx(one)
    again = [pb.load_policy(trained("gaussian"), seed=3).act(obs) for _ in range(2)]
    assert np.array_equal(*again)
    assert not np.array_equal(again[0], many)
    assert "epsilon" in repr(policy)


@pytest.mark.parametrize(
    ("obs", "message"),
    [([1.0, 2.0], r"shape \(2,\); the policy takes \(3,\)"), ([1.0, np.nan, 0.0], "non-finite")],
)
def test_wrong_observations_raise(obs, message, trained):
    with pytest.raises(ValueError, match=message):
        pb.load_policy(trained("gaussian")).act(obs)


def test_states_are_integers(trained):
    policy = pb.load_policy(trained("states"), seed=0)
    assert policy.act(2) in range(4)
    assert policy.act(np.array([0, 1, 2])).shape == (3,)
    assert policy.act(np.eye(policy.file.spec.obs_dim)[1]) in range(4)
    with pytest.raises(ValueError, match="is not in Discrete"):
        policy.act(99)


@pytest.mark.fast_every(8)
@pytest.mark.parametrize(
    "name", ["categorical", "gaussian", "multi", "dropout", "q", "squashed", "loglinear"]
)
@pytest.mark.parametrize("to", ["onnx", "torchscript"])
def test_exported_files_act_as_the_policy_does(name, to, trained, tmp_path):
    policy = pb.load_policy(trained(name))
    dim = policy.file.spec.obs_dim
    target = pb.export(trained(name), to, tmp_path / "file")
    obs = np.random.default_rng(1).normal(size=(1000, dim)).astype(np.float32)
    if name == "loglinear":
        obs = np.eye(dim, dtype=np.float32)[np.arange(1000) % dim]
        wanted = policy.act(list(obs), greedy=True)
    else:
        wanted = policy.act(obs, greedy=True)
    if to == "onnx":
        ort = pytest.importorskip("onnxruntime")
        session = ort.InferenceSession(str(target))
        (found,) = session.run(None, {"observations": obs})
        about = session.get_modelmeta().custom_metadata_map["guarantee"]
    else:
        files = {"privrl_bench.json": ""}
        found = torch.jit.load(str(target), _extra_files=files)(torch.from_numpy(obs)).numpy()
        about = json.dumps(json.loads(files["privrl_bench.json"])["guarantee"])
    if policy.file.spec.discrete or policy.file.spec.choices is not None:
        assert found.dtype == np.int64
        assert (found == wanted).mean() >= 0.999  # ties may be broken by rounding
    else:
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert json.loads(about)["status"] == policy.guarantee["status"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["play", "nowhere"], "RUN: there is no nowhere"),
        (["play", "RUN", "RUN", "--video", "a.gif"], "is one file"),
        (["evaluate", "RUN", "--episodes", "1"], "integer >= 2"),
        (["evaluate", "RUN", "--env", "env=hopper"], "hopper does not fit the policy"),
        (["evaluate", "RUN", "--env", "env=hoper"], "did you mean hopper"),
        (["evaluate", "RUN", "--env", "algo.lr=3"], "algo.lr: has no effect on a trained policy"),
        (["evaluate", "RUN", "--env", "env.foo=3"], "env.foo: no such key"),
        (["export", "RUN", "--to", "onx"], "did you mean onnx"),
    ],
)
def test_bad_input_is_one_line(words, message, trained, capsys):
    run = str(trained("categorical"))
    assert main([run if word == "RUN" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("onnx", "onnxscript"), "onnx needs onnx and onnxscript: "),
        (("onnx",), "onnx needs onnx: "),
    ],
)
def test_all_missing_packages_are_named_at_once(missing, said, trained, capsys, monkeypatch):
    run, found = str(trained("categorical")), importlib.util.find_spec

    def there(name, package=None):
        return None if name in missing else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", there)
    assert main(["export", run]) == 2
    err = capsys.readouterr().err
    assert f"{said}pip install 'privrl-bench[export]', or to=torchscript" in err
    assert err.count("\n") == 1


def test_a_table_for_each_step_is_not_exported(trained, capsys):
    assert main(["export", str(trained("table"))]) == 2
    assert "cannot be exported" in capsys.readouterr().err


def test_an_export_with_the_suffix_of_another_format(trained, monkeypatch, tmp_path, capsys):
    run = trained("categorical").resolve()
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "onnx", "--out", "x.ts"]) == 2
    err = capsys.readouterr().err
    assert "--out: x.ts has the suffix of to=torchscript" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_files_without_a_policy(tmp_path, trained, capsys):
    (tmp_path / "status.json").write_text("{}")
    for change, message in (
        ({"format": None}, "of another version"),
        ({"policy": None}, "estimates the value of one"),
        ({"policy": {"class": "os:system", "arguments": {}}}, "needs the plugin os"),
    ):
        content = torch.load(trained("categorical") / "policy.pt", weights_only=True)
        torch.save(content | change, tmp_path / "policy.pt")
        with pytest.raises(pb.ConfigError, match=message):
            pb.load_policy(tmp_path)
    (tmp_path / "policy.pt").write_bytes(b"no")
    with pytest.raises(pb.ConfigError, match="is not a policy file"):
        pb.load_policy(tmp_path)
    (tmp_path / "policy.pt").unlink()
    with pytest.raises(pb.ConfigError, match="the run is not finished"):
        pb.load_policy(tmp_path)


def test_the_command_evaluates(trained, capsys):
    run = str(trained("categorical"))
    assert main(["evaluate", run, "--episodes", "3", "--env", "env.max_episode_steps=20"]) == 0
    out = capsys.readouterr().out
    assert "return -20.0" in out
    assert "formal" in out
    assert main(["evaluate", run, "--episodes", "3", "--json", "--stochastic"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert len(row["returns"]) == 3
    assert row["guarantee"]["status"] == "formal"
