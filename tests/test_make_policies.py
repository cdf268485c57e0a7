"""The script that made the package's policy files, and what the files are worth."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import changed, load_script, shipped

from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline import fixed_policies as known
from privrl_bench.packs.offline.fixed_policies import fixed_policy, load_values
from privrl_bench.packs.offline.playing import play

SCRIPT = load_script("make_policies")


def scores(env, name, episodes, gamma):
    """Mean return, and mean discounted return."""
    config = shipped(env)
    if env == "mountain_car":
        config = changed(config, max_episode_steps=1000)
    spec = env_spec(config)
    played = play(
        make_slots(config, episodes),
        spec,
        fixed_policy(name, config, spec),
        Streams(7),
        range(episodes),
    )
    rewards = [e.rewards.astype(float) for e in played]
    discounted = [float(gamma ** np.arange(len(r)) @ r) for r in rewards]
    return np.mean([r.sum() for r in rewards]), np.mean(discounted)


def test_the_greedy_policy_of_mountain_car_climbs_fast() -> None:
    assert known.shipped() == ["hiv", "mountain_car"]
    about = load_values("mountain_car").about
    total, discounted = scores("mountain_car", "mountain_car", 60, 0.99)
    assert total > -150
    assert total == pytest.approx(about["greedy"]["return"], abs=12)
    assert discounted == pytest.approx(about["greedy"]["discounted"], abs=4)


def test_the_greedy_policy_of_hiv_beats_every_constant_treatment() -> None:
    total, discounted = scores("hiv", "hiv", 1, 0.98)
    assert total > 100 * 7.02e6  # always both drugs
    assert discounted > 100 * 2.0e6
    assert total == pytest.approx(load_values("hiv").about["greedy"]["return"], rel=0.02)


def test_files_say_how_they_were_made() -> None:
    for name, recipe in SCRIPT.RECIPES.items():
        values = load_values(name)
        assert values.about["command"] == f"python scripts/make_policies.py {name} --seed 0"
        made = values.about["recipe"]
        assert SCRIPT.Recipe(**{**made, "words": tuple(made["words"])}) == recipe
        assert (values.low, values.high) == (shipped(name).obs_low, shipped(name).obs_high)


# --- learning, by hand


def test_a_step_of_q_learning() -> None:
    weights = np.array([[1.0, 0.0], [0.0, 2.0]])
    phi, after, steps = np.array([1.0, 0.5]), np.array([1.0, -1.0]), np.array([0.1, 0.05])
    SCRIPT.q_update(weights, phi, 1, 3.0, after, 0.9, steps)
    gap = 3.0 + 0.9 * 1.0 - 1.0
    np.testing.assert_allclose(weights, [[1, 0], [0.1 * gap, 2 + 0.05 * gap * 0.5]])
    SCRIPT.q_update(weights, phi, 0, 3.0, None, 0.9, steps)
    np.testing.assert_allclose(weights[0], [1 + 0.1 * 2, 0.05 * 2 * 0.5])


def test_fitting_finds_the_values_of_a_small_problem() -> None:
    """Two states, two actions: stay for r = s, or change the state for 0; features are the states."""
    phi = np.eye(2)[[0, 0, 1, 1]]
    actions, rewards = np.array([0, 1, 0, 1]), np.array([0.0, 0, 1, 0])
    after = np.eye(2)[[0, 1, 1, 0]]
    recipe = replace(SCRIPT.RECIPES["hiv"], gamma=0.5, ridge=1e-9, sweeps=60)
    found = SCRIPT.fit(phi, actions, rewards, after, np.zeros((2, 2)), recipe)
    # Staying in state 1 is worth 2; from state 0 one changes (1), or waits a step before (0.5).
    np.testing.assert_allclose(found, [[0.5, 2.0], [1.0, 0.5]], atol=1e-6)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("name", ["hiv", "mountain_car"])
def test_the_script_writes_a_file_that_plays(name, tmp_path, monkeypatch, capsys) -> None:
    short = replace(SCRIPT.RECIPES[name], words=(f"env={name}",), episodes=2, look=1, tests=1)
    monkeypatch.setitem(SCRIPT.RECIPES, name, short)
    monkeypatch.setattr("sys.argv", ["make_policies", name, "--out", f"{tmp_path}/own.json"])
    SCRIPT.main()
    assert "2 episodes: " in capsys.readouterr().out
    content = json.loads((tmp_path / "own.json").read_text())
    assert content["about"]["recipe"]["episodes"] == 2
    config = shipped(name)
    policy = fixed_policy(f"{tmp_path}/own.json:softmax:1", config, env_spec(config))
    behavior_probs = policy.probabilities(torch.zeros(4, len(config.obs_low)))
    torch.testing.assert_close(behavior_probs.sum(-1), torch.ones(4))


def test_step_factors() -> None:
    steps = SCRIPT.fourier_steps(known.fourier_waves(2, 5))
    assert steps[:6].tolist() == pytest.approx([1, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert float(steps[-1]) == pytest.approx(0.14142136, abs=1e-8)
    assert float(steps[7]) == pytest.approx(1 / math.sqrt(2))
