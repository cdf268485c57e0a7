"""Wrappers by name: what they change, that none carries state to the next user, and where they are named."""

import json
import warnings

import gymnasium as gym
import numpy as np
import pytest

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.cli import train
from privrl_bench.cli.main import main
from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import digest
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.check import ERROR, brief, check_env
from privrl_bench.envs.construction import make_env
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.envs.slots import LoopSlots
from privrl_bench.envs.wrappers import NewEachEpisode
from privrl_bench.errors import ConfigError
from privrl_bench.training import provenance
from privrl_bench.training.trained_policy import env_config, read_policy

NORMALIZE = "gymnasium.wrappers:NormalizeObservation"
LIMIT = {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 7}
STACK = {"name": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}


def config_of(*wrappers, **changes):
    plain = {"id": "CartPole-v1", "obs_scaling": "none", "reward_scaling": "none"}
    return EnvConfig(wrappers=list(wrappers), **{**plain, **changes})


def words(*more):
    return [
        *("algo=dppg", "env=gym", "env.id=CartPole-v1", "env.user_steps=16", "rounds=4"),
        *("privacy.users_per_round=4", "privacy.z=1", "algo.hidden=[4]", "eval.episodes=2"),
        *("log=none", *more),
    ]


def trained(given):
    """The exit code of `privrl-bench`."""
    with pytest.raises(SystemExit) as ended:
        train.main(given)
    return ended.value.code


def episode(slots, seed, actions, slot=0):
    """Everything that one slot returns."""
    where = np.array([slot])
    found = [slots.reset(where, [seed]).tobytes()]
    for action in actions:
        result = slots.step(where, np.array([action]))
        found += [result.obs.tobytes(), result.rewards.tobytes()]
    return found


@pytest.mark.parametrize(
    "wrapper",
    [
        NORMALIZE,
        {"name": "gymnasium.wrappers:NormalizeReward", "gamma": 0.9},
        STACK,
        "gymnasium.wrappers:RecordEpisodeStatistics",
        "wrappers_pkg:Total",
        "wrappers_pkg:Stronger",
    ],
)
def test_an_episode_does_not_depend_on_those_before_it_in_the_slot(wrapper):
    config = config_of(wrapper)
    used, fresh = make_slots(config, 2), make_slots(config, 2)
    assert isinstance(used, LoopSlots)
    episode(used, 5, [1, 1, 1, 0, 1])
    episode(used, 6, [0, 0, 0, 0])
    assert episode(used, 7, [1, 0, 1, 1]) == episode(fresh, 7, [1, 0, 1, 1])
    used.close()
    fresh.close()


def test_the_same_wrapper_inside_a_registered_environment_is_found_and_refused(tmp_path, capsys):
    """There, Gymnasium makes it once: the road of every environment that keeps state over a reset."""
    config = config_of(id="wrappers_pkg:Normalised-v0")
    used, fresh = make_slots(config, 1), make_slots(config, 1)
    episode(used, 5, [1, 1, 1, 0, 1])
    assert episode(used, 7, [1, 0]) != episode(fresh, 7, [1, 0])
    errors = [one.text for one in check_env(config, steps=100).findings if one.severity == ERROR]
    assert len(errors) == 1
    assert "reset leaves state behind, so that a user's data can reach the next user" in errors[0]
    given = words("env.id=wrappers_pkg:Normalised-v0", f"hydra.run.dir={tmp_path}")
    assert trained([x for x in given if x != "env.id=CartPole-v1"]) == 2
    assert "reset leaves state behind" in capsys.readouterr().err


def test_state_that_all_objects_share_is_found_before_training(tmp_path, capsys):
    """No new object helps; two plays differ."""
    config = config_of("wrappers_pkg:Shared")
    assert any("other results" in one.text for one in brief(config))


@pytest.mark.slow
def test_no_leak_with_a_wrapper_that_keeps_statistics_and_one_without_new_environments(monkeypatch):
    run = shrink(compose(words(f"env.wrappers=[{NORMALIZE}]")))[0]
    report = find_leaks(run, user=1, late=False)
    assert report.ok
    assert not report.found
    assert not report.no_test_power
    # The test has the power to see what new environments prevent.
    monkeypatch.setattr(NewEachEpisode, "reset", gym.Wrapper.reset)
    assert find_leaks(run, user=1, late=False).found


def test_wrappers_are_applied_in_order_with_their_arguments():
    env = make_env(config_of(LIMIT, {"name": "wrappers_pkg:Twice", "k": 3.0}))
    plain = make_env(config_of())
    assert np.array_equal(env.reset(seed=1)[0], 3.0 * plain.reset(seed=1)[0])
    spec = env_spec(config_of(LIMIT, STACK))
    assert (spec.max_episode_steps, spec.obs_dim) == (7, 12)
    narrow = {"name": "gymnasium.wrappers:RescaleAction", "min_action": -3, "max_action": 1}
    spec = env_spec(config_of(narrow, id="Pendulum-v1"))
    assert (spec.action_low.tolist(), spec.action_high.tolist()) == ([-3.0], [1.0])


def test_wrapped_simulators_are_stepped_by_gymnasium_and_lose_their_simple_rule():
    from privrl_bench.evaluation.baselines import _policies
    from privrl_bench.models.trivial_policies import TRIVIAL

    config = compose(["env=cartpole", "env.wrappers=[wrappers_pkg:Twice]"]).env
    assert isinstance(make_slots(config, 1), LoopSlots)
    assert TRIVIAL["cartpole"].name not in _policies(config, env_spec(config))


def test_they_are_part_of_the_identity_and_of_the_label():
    plain = digest(compose(words()))
    assert digest(compose(words("env.wrappers=[]"))) == plain
    assert compose(words()).env.label == "CartPole-v1"
    assert compose(words("env.wrappers=[wrappers_pkg:Twice]")).env.label == "CartPole-v1+Twice"
    one = digest(compose(words("env.wrappers=[wrappers_pkg:Twice]")))
    assert one != plain
    assert one == digest(compose(words("env.wrappers=[{name: wrappers_pkg:Twice}]")))
    assert one != digest(compose(words("env.wrappers=[{name: wrappers_pkg:Twice, k: 3}]")))


def test_their_source_is_noted_and_a_change_is_noticed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_wrappers.py"
    file.write_text("import gymnasium as gym\nclass Same(gym.Wrapper):\n    pass\n")
    config = compose(words("env.wrappers=[own_wrappers:Same]"))
    before = {"sources": provenance.sources(config)}
    assert list(before["sources"]) == ["own_wrappers"]
    assert not provenance.changed(config, before)
    file.write_text(file.read_text() + "# changed\n")
    assert provenance.changed(config, before) == ["own_wrappers"]
    assert provenance.sources(compose(words(f"env.wrappers=[{NORMALIZE}]"))) == {}


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[gymnasium.wrapers:TimeLimit]", "cannot import 'gymnasium.wrapers'"),
        ("[gymnasium.wrappers:TimeLimt]", "has no 'TimeLimt' (did you mean TimeLimit?)"),
        ("[gymnasium.wrappers.TimeLimit]", "must be a list of module:Class or {name: module:Class"),
        ("[{k: 3}]", "must be a list of module:Class or {name: module:Class"),
        ("wrappers_pkg:Twice", "must be a list of"),
        ("[wrappers_pkg:NoWrapper]", "wrappers_pkg:NoWrapper is no subclass of gymnasium.Wrapper"),
        ("[wrappers_pkg:Broken]", "cannot be made with {}: RuntimeError: no such wheel"),
        ("[{name: wrappers_pkg:Twice, z: 3}]", "cannot be made with {'z': 3}: TypeError"),
        ("[gymnasium.wrappers:TimeLimit]", "cannot be made with {}: TypeError"),
    ],
)
def test_bad_wrappers_are_one_line(given, said, tmp_path, capsys):
    assert trained(words(f"env.wrappers={given}", f"hydra.run.dir={tmp_path}")) == 2
    err = capsys.readouterr().err
    assert "env.wrappers: " in err
    assert said in err
    assert err.count("\n") == 1


def test_texts_have_none():
    with pytest.raises(ConfigError, match=r"env\.wrappers: must be left out for texts"):
        compose(["algo=dppg_text", "env=sentiment_small", "env.wrappers=[wrappers_pkg:Twice]"])


@pytest.mark.slow
def test_a_finished_run_names_them_and_its_policy_gets_them_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    limit = "{name: gymnasium.wrappers:TimeLimit, max_episode_steps: 7}"
    stack = "{name: gymnasium.wrappers:FrameStackObservation, stack_size: 3}"
    given = words(f"env.wrappers=[{limit},{stack}]", "hydra.run.dir=run", "rounds=2")
    assert trained([x for x in given if x != "rounds=4"]) == 0
    shown = capsys.readouterr().out
    assert (
        "  wrapped gymnasium.wrappers:TimeLimit(max_episode_steps=7), gymnasium.wrappers:"
        "FrameStackObservation(stack_size=3); made anew with the environment at every reset\n"
    ) in shown
    assert env_config(read_policy("run")).wrappers == [LIMIT, STACK]
    assert pb.load_policy("run").act(np.zeros((3, 4))) in (0, 1)
    assert pb.evaluate("run", episodes=3).lengths.max() <= 7
    # Another limit inside keeps the wrappers, in place of an environment that does not fit.
    assert pb.evaluate("run", episodes=3, env="env.max_episode_steps=4").lengths.max() <= 4
    collect = ["collect", "policy=run", "episodes=2", "name=wrapped/stack-v0"]
    assert main(collect) == 0, capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pygame
        assert main(["play", "run", "--video", "play.gif", "--episodes", "2"]) == 0
    assert (
        json.loads((tmp_path / "run/summary.json").read_text())["guarantee"]["status"] == "formal"
    )


def test_check_env_names_them_and_proposes_them(capsys, tmp_path):
    given = ["check-env", "CartPole-v1", "env.wrappers=[{name: wrappers_pkg:Twice, k: 3}]"]
    assert main([*given, "--steps", "50", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    texts = {one["check"]: one["text"] for one in report["findings"]}
    assert texts["wrappers"].startswith("wrappers_pkg:Twice(k=3); made anew")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "cartpole_v1_twice.yaml").write_text(report["yaml"])
    proposed = compose(["env=cartpole_v1_twice", "algo=dppg"], str(tmp_path)).env
    assert proposed.wrappers == [{"name": "wrappers_pkg:Twice", "k": 3}]
