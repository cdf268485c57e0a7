"""Scores of baseline policies against known values."""

from dataclasses import replace

import pytest
import torch
from helpers import shipped

from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.models.trivial_policies import TRIVIAL, TrivialPolicy, nothing


def score(name, episodes):
    config = replace(shipped(name), obs_scaling="none")
    spec, rule = env_spec(config), TRIVIAL.get(name)
    evaluator = ReturnEvaluator(
        config, spec, TrivialPolicy(rule or nothing(spec.actions)), [Streams(0)], episodes, True
    )
    scaling = SignalScaler(config, 1, episodes, spec.obs_dim, 1.0).frozen()
    (found,) = evaluator.evaluate(torch.zeros(1, 0), 0, scaling)
    evaluator.close()
    return found.returns


@pytest.mark.parametrize(
    ("name", "mean", "tolerance"),
    [
        ("cartpole", 495.0, 6.0),
        ("acrobot", -83.5, 3.0),
        ("dosing0", 88.4, 1.5),
        ("dosing1", 52.5, 15.0),
        ("riverswim", 3.397, 0.9),
        ("pendulum", -180.0, 60.0),
        ("mountain_car", -119.0, 15.0),
        ("hiv", 4.96331e7, 1e3),
    ],
)
def test_rules_score_the_known_means(name, mean, tolerance) -> None:
    episodes = 2 if name == "hiv" else 60  # its patients are all the same
    assert score(name, episodes).mean() == pytest.approx(mean, abs=tolerance)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("hopper", 100, 260), ("halfcheetah", -20, 5), ("walker2d", -20, 400), ("ant", 0, 1001)],
)
def test_doing_nothing(name, low, high) -> None:
    assert low < score(name, 3).mean() < high
