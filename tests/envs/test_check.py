"""Checks of an environment: what they find, and what they leave alone."""

import random
from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium.spaces import Box, Discrete
from helpers import own
from my_pkg import ManyActions, MyEnv, clinic_log

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.check import ERROR, WARNING, brief, check_env, untouched_randomness
from privrl_bench.errors import ConfigError

FAULTS = SimpleNamespace(count=0)


class Faulty(MyEnv):
    """With one fault."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.total, self.steps = fault, 0, 0
        if fault == "outside":
            self.observation_space = Box(0.0, 0.5, (5,), np.float32)

    def reset(self, *, seed=None, options=None):
        random.seed(seed)
        np.random.seed(7)  # noqa: NPY002
        torch.manual_seed(3)
        self.steps = 0
        self.action_space = Discrete(2)  # a new one, which nobody has seeded
        return super().reset(seed=seed)

    def step(self, action):
        obs, reward, over, cut, info = super().step(action)
        self.total += 1
        self.steps += 1
        if self.fault == "reward":
            reward = float("nan") if self.steps == 3 else reward
        if self.fault == "obs":
            obs = obs / 0.0 if self.steps == 3 else obs
        if self.fault == "double":
            obs = obs.astype(np.float64)
        if self.fault == "word":
            reward = "much"
        if self.fault == "shape":
            obs = obs[:3]
        if self.fault == "four":
            return obs, reward, over, info
        if self.fault == "raise":
            raise RuntimeError("pump is stuck")
        if self.fault == "carries":
            reward += self.total
        if self.fault == "clock":
            FAULTS.count += 1
            reward += FAULTS.count
        return obs, reward, over, cut, info


gym.register("Faulty-v0", entry_point=Faulty, max_episode_steps=20)
gym.register("NoLimitFaulty-v0", entry_point=Faulty)
gym.register("NoLimitActions-v0", entry_point=ManyActions)


def faulty(fault="", **changes):
    return EnvConfig(
        kwargs={"fault": fault},
        obs_scaling="none",
        reward_scaling="none",
        **{"id": "Faulty-v0", "user_steps": 20, **changes},
    )


def found(report, severity):
    return {one.check: one.text for one in report.findings if one.severity == severity}


@pytest.mark.parametrize(
    ("fault", "check", "text"),
    [
        ("reward", "values", "rewards are not finite"),
        ("obs", "values", "observations are not finite"),
        ("word", "values", "rewards must be numbers, step returned a str"),
        ("shape", "values", "an observation has shape (3,), the observation_space has (5,)"),
        ("four", "values", "step raised ValueError: not enough values to unpack"),
        ("raise", "values", "step raised RuntimeError: pump is stuck"),
    ],
)
def test_errors(fault, check, text):
    report = check_env(faulty(fault), steps=300)
    assert not report.ok
    assert text in found(report, ERROR)[check]
    short = {one.check: one.text for one in brief(faulty(fault)) if one.severity == ERROR}
    assert text in short[check]


def test_what_reset_leaves_behind_is_an_error_and_a_clock_a_warning():
    carries = check_env(faulty("carries"), steps=100)
    assert "reset leaves state behind" in found(carries, ERROR)["determinism"]
    clock = check_env(faulty("clock"), steps=100)
    assert clock.ok
    assert "other results in a new instance" in found(clock, WARNING)["determinism"]
    assert "other results" in brief(faulty("clock"))[0].text
    (before_training,) = brief(faulty("carries"))
    assert before_training.severity == ERROR
    assert "reset leaves state behind" in before_training.text


class Brittle(MyEnv):
    """Random actions never find its fault."""

    def __init__(self, corner=(1, 1, 1, 1), wrong=0.0):
        super().__init__()
        self.action_space = Box(-1.0, 1.0, (2, 2), np.float32)
        self.corner, self.wrong = np.reshape(corner, (2, 2)), wrong

    def step(self, action):
        here = np.array_equal(action, self.corner)
        if here and not self.wrong:
            raise FloatingPointError("solver diverged")
        obs, _, over, cut, info = super().step(1)
        return obs, self.wrong if here else 0.0, over, cut, info


gym.register("Brittle-v0", entry_point=Brittle, max_episode_steps=20)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        (
            {},
            "step raised FloatingPointError: solver diverged (at the action [1, 1, 1, 1], a corner",
        ),
        ({"corner": [-1, -1, -1, -1]}, "(at the action [-1, -1, -1, -1], a corner of its space)"),
        ({"corner": [-1, 1, -1, 1]}, "(at the action [-1, 1, -1, 1], a corner of its space)"),
        ({"wrong": float("nan")}, "rewards are not finite in single precision (at the action"),
    ],
)
def test_a_fault_at_a_corner_of_the_actions_is_found(kwargs, said):
    config = EnvConfig(id="Brittle-v0", kwargs=kwargs, obs_scaling="none", reward_scaling="none")
    report = check_env(config, steps=100)
    assert not report.ok
    text = found(report, ERROR)["corners"]
    assert said in text
    assert "\n" not in text
    assert [one.severity for one in brief(config) if one.check == "corners"] == [ERROR]


def test_a_good_environment_has_no_finding():
    report = check_env(faulty(), steps=400)
    assert report.ok
    assert not found(report, WARNING)
    assert [one.severity for one in brief(faulty())] == ["fine"]
    texts = found(report, "fine")
    assert texts["lengths"].startswith("20 episodes of 20 to 20 steps, median 20, limit 20")
    assert texts["observations"].endswith("(5,), float32)")
    assert "simulated" in texts["users"]


def test_observations_outside_their_space_and_too_few_steps_are_warnings():
    report = check_env(faulty("outside", user_steps=6), steps=100)
    assert report.ok
    warnings = found(report, WARNING)
    assert "outside the observation_space" in warnings["values"]
    assert "no user reaches the end of an episode" in warnings["user_steps"]


def test_observations_of_another_type_than_their_space_are_a_warning():
    text = "observations are float64, the observation_space has float32"
    assert found(check_env(faulty("double"), steps=40), WARNING)["values"] == text
    assert [one.text for one in brief(faulty("double"))] == [text]


def test_the_proposed_scaling_can_be_used():
    report = check_env(replace(own("Point"), name="gym"), steps=300)
    text = report.proposed
    made = yaml.safe_load(text)
    assert text.startswith("# Public constants, from random actions in simulation.")
    assert made["name"] == "point_v0"
    assert made["id"] == "my_pkg:Point-v0"
    config = EnvConfig(**made)
    assert len(config.obs_mean) == len(config.obs_std) == 2
    assert config.reward_scale > 0


def test_global_random_states_are_untouched():
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002

    before = states()
    brief(faulty())
    check_env(faulty(), steps=50)
    assert states() == before
    with untouched_randomness():
        random.random()
        torch.rand(1)
    assert states() == before


def test_all_errors_are_found_at_once():
    report = check_env(faulty("reward", id="NoLimitFaulty-v0"), steps=300)
    errors = found(report, ERROR)
    assert "no time limit; set a public one" in errors["lengths"]
    assert "the other checks use 1000" in errors["lengths"]
    assert "rewards are not finite" in errors["values"]
    assert "max_episode_steps: 1000" in report.proposed
    wrong = [
        one.check
        for one in check_env(own("ManyActions", id="NoLimitActions-v0"), 50).findings
        if one.severity == ERROR
    ]
    assert wrong == ["lengths", "spaces"]


@pytest.mark.parametrize("name", ["Clinic", "SpecClinic"])
def test_declared_users_never_take_part(name, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("CLINIC_LOG", str(log))
    report = check_env(own(name, user_steps=5), steps=100)
    brief(own(name))
    calls = clinic_log(log)
    assert len(calls) > 10
    assert all(call[0] == {"user": None, "evaluation": True} for call in calls)
    assert report.ok
    assert found(report, "fine")["users"].startswith("12 declared; training resets user k")


def test_an_environment_without_evaluation_is_an_error_and_never_reset(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("CLINIC_LOG", str(log))
    report = check_env(own("RealClinic", user_steps=5), steps=100)
    assert "must start a simulation" in found(report, ERROR)["users"]
    assert not clinic_log(log)


def test_an_unknown_id_is_bad_input():
    with pytest.raises(ConfigError, match=r"env\.id: Gymnasium cannot make"):
        check_env(EnvConfig(id="CartPol-v1"))
