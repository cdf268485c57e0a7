"""Known policies at play: exact chances, the same data however they are played; `privrl collect policy=`."""

import json
import os
import signal

import minari
import numpy as np
import pytest
import torch
from helpers import changed, own, shipped
from hypothesis import given
from hypothesis import strategies as st
from recorded import assert_same_episodes, everything, no_figure

from privrl_bench.config.overrides import later_wins
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline import recording as module
from privrl_bench.packs.offline.collect import main, parse
from privrl_bench.packs.offline.datasets.minari_files import local_ids
from privrl_bench.packs.offline.fixed_policies import LinearValues, choose, fixed_policy
from privrl_bench.packs.offline.playing import play

CAR = changed(shipped("mountain_car"), max_episode_steps=40)
SPEC = env_spec(CAR)


@pytest.fixture(autouse=True)
def car_values(here, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "figure", no_figure)
    weights = torch.arange(12.0).reshape(4, 3).sin().double()
    car = LinearValues("MountainCar-v0", 1, None, [-1.2, -0.07], [0.6, 0.07], weights, {})
    car.save(tmp_path / "own.json")


def soft():
    return fixed_policy("own.json:softmax:1", CAR, SPEC)


# --- choices


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(0, 1, exclude_max=True))
def test_a_choice_is_possible_and_where_the_number_falls(weights, uniforms):
    if not 0 < sum(weights) < np.inf:
        return
    behavior_probs = np.array([weights]) / sum(weights)
    (chosen,) = choose(behavior_probs, np.array([uniforms]))
    assert behavior_probs[0, chosen] > 0
    assert behavior_probs[0, :chosen].sum() <= uniforms + 1e-12
    assert uniforms < behavior_probs[0, : chosen + 1].sum() + 1e-12


def test_choices_are_as_frequent_as_their_chances():
    uniforms = (np.arange(1000) + 0.5) / 1000
    behavior_probs = np.tile([0.2, 0.0, 0.5, 0.3], (1000, 1))
    assert np.bincount(choose(behavior_probs, uniforms)).tolist() == [200, 0, 500, 300]


# --- episodes


@pytest.mark.parametrize("spoiled", ["obs", "huge", "reward"])
def test_what_is_not_finite_is_not_recorded(spoiled):
    config = own("Clock", kwargs={"spoiled": spoiled})
    spec, many = env_spec(config), range(16)
    policy = fixed_policy("uniform", config, spec)
    with pytest.raises(EnvironmentFailure, match="an observation or a reward is not finite"):
        play(make_slots(config, len(many)), spec, policy, Streams(0), many)


def test_chances_are_the_policys_own_of_what_the_data_hold():
    episodes = play(make_slots(CAR, 6), SPEC, soft(), Streams(3), range(6))
    for e in episodes:
        offered = soft().probabilities(torch.from_numpy(e.observations[:-1])).numpy()
        taken = np.take_along_axis(offered, e.actions[:, None], -1)[:, 0]
        np.testing.assert_allclose(e.behavior_probs, taken, rtol=3e-7)
        assert e.behavior_probs.dtype == np.float32
        assert len(e.rewards) == 40
        assert e.truncated[-1]
        assert not e.terminated.any()
    assert len({e.actions.tobytes() for e in episodes}) == 6


def test_the_steps_are_those_of_the_simulator():
    (e,) = play(make_slots(CAR, 1), SPEC, soft(), Streams(0), range(4, 5))
    slots = make_slots(CAR, 1)
    obs = slots.reset(np.zeros(1, int), [Streams(0).episode_seed("play_env", 4)])
    for t, action in enumerate(e.actions):
        assert np.array_equal(obs[0], e.observations[t])
        obs = slots.step(np.zeros(1, int), np.array([action])).obs


def test_an_episode_is_a_function_of_seed_and_number():
    together = play(make_slots(CAR, 5), SPEC, soft(), Streams(1), range(5))
    alone = [
        e
        for k in range(5)
        for e in play(make_slots(CAR, 1), SPEC, soft(), Streams(1), range(k, k + 1))
    ]
    assert_same_episodes(together, alone)
    other = play(make_slots(CAR, 5), SPEC, soft(), Streams(2), range(5))
    assert not np.array_equal(together[0].observations, other[0].observations)


def test_epsilon_greedy_takes_the_greedy_action_as_often_as_it_says():
    policy = fixed_policy("own.json:epsilon:0.3", CAR, SPEC)
    episodes = play(make_slots(CAR, 60), SPEC, policy, Streams(1), range(60))
    behavior_probs = np.concatenate([e.behavior_probs for e in episodes])
    assert set(np.unique(behavior_probs)) == {np.float32(0.1), np.float32(0.8)}
    assert (behavior_probs == np.float32(0.8)).mean() == pytest.approx(0.8, abs=0.03)


def test_episodes_of_different_length_end_where_they_end():
    chain = shipped("chain")
    spec = env_spec(chain)
    episodes = play(
        make_slots(chain, 50), spec, fixed_policy("uniform", chain, spec), Streams(0), range(50)
    )
    for e in episodes:
        assert e.terminated[-1] == (e.rewards.sum() == 1)
        assert (e.behavior_probs == 1).all()
        assert not e.observations[-1].any() or e.truncated[-1]
    assert len({len(e.rewards) for e in episodes}) > 20


# --- the command

WORDS = ["env=mountain_car", "env.max_episode_steps=40", "policy=own.json:softmax:1", "episodes=10"]


def test_own_words():
    order = parse(["env=mountain_car", "policy=x/y.json:softmax:0.5", "episodes=2_000", "seed=3"])
    assert (order.policy, order.episodes) == ("x/y.json:softmax:0.5", 2000)
    assert order[:3] == ("mountain-car/y-softmax-0-5-v0", 256, ("env=mountain_car", "seed=3"))


def test_a_dataset_with_chances(tmp_path, capsys):
    assert main([*WORDS, "seed=5", "name=own/car-v0", "together=4"]) == 0
    played = play(make_slots(CAR, 10), SPEC, soft(), Streams(5), range(10))
    assert_same_episodes(everything("own/car-v0"), played)
    folder = tmp_path / "outputs/collect/own-car-v0"
    card = json.loads((folder / "card.json").read_text())
    assert (card["policy"], card["returns"]["mean"]) == ("own.json:softmax:1", -40)
    assert card["smallest_chance"] == pytest.approx(min(e.behavior_probs.min() for e in played))
    assert (folder / "returns.png").exists()
    (first, *_) = minari.load_dataset("own/car-v0").iterate_episodes()
    assert np.array_equal(first.infos["behaviour_probabilities"][1:], played[0].behavior_probs)
    shown = capsys.readouterr()
    assert "10 of 10 episodes" in shown.err
    assert main([*WORDS, "seed=5", "name=own/car-v0"]) == 0
    assert capsys.readouterr().out.startswith("skipped  own/car-v0 exists: 10 episodes")
    assert main([*WORDS, "name=own/car-v0"]) == 2
    assert capsys.readouterr().err.startswith("error: name: own/car-v0 exists, made with another")


def test_an_interrupted_collection_equals_a_whole_one(monkeypatch):
    real, seen = module.play, []

    def interrupted(*given):
        seen.append(given[-1])
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*given)

    monkeypatch.setattr(module, "play", interrupted)
    words = [*WORDS, "together=3", "name=cut-v0"]
    assert main(words) == 130
    assert local_ids() == []
    assert main([*words[:-2], "together=4", "name=cut-v0"]) == 2  # another order
    assert main(words) == 0
    assert seen == [range(0, 3), range(3, 6), range(6, 9), range(9, 10)]
    monkeypatch.setattr(module, "play", real)
    assert main([*WORDS, "together=10", "name=whole-v0"]) == 0
    assert_same_episodes(everything("whole-v0"), everything("cut-v0"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["policy=unifrom"], "policy: no policy 'unifrom' (did you mean uniform?)"),
        (["policy="], "policy: no policy ''"),
        (["episodes=0"], "episodes: must be an integer >= 1"),
        (["episodes=many"], "episodes: must be an integer >= 1"),
        (["runs=3"], "runs: goes with training runs"),
        (["algo=ddpg"], "algo: goes with training runs"),
        (
            ["env=pendulum"],
            "policy: fixed policies need discrete actions; those of env=pendulum are continuous",
        ),
        (["env=acrobot"], "policy: own.json is for MountainCar-v0, not for env=acrobot"),
        (["envv=x"], "envv: no such key"),
        (["episode"], "cannot read 'episode'; write key=value"),
        (["name=none"], "name: "),
    ],
    ids=str,
)
def test_what_cannot_be_played_is_one_line(words, line, capsys, monkeypatch):
    monkeypatch.setattr(module, "play", lambda *given: pytest.fail("played"))
    assert main(later_wins(WORDS, words)) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {line}")
    assert shown.count("\n") == 1
    assert local_ids() == []


def test_words_of_the_other_kind(capsys):
    assert main(["policy=uniform"]) == 2
    assert capsys.readouterr().err.startswith("error: env: is missing")
    assert main(["env=pendulum", "episodes=3"]) == 2
    assert capsys.readouterr().err.startswith("error: episodes: goes with policy=")
