"""Evaluations that met non-finite numbers have no result: not in files, on the screen, in reports or in W&B."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import own, shipped

from privrl_bench.composition.compose import compose
from privrl_bench.envs.classic import CartPoleSlots, PendulumSlots
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, NumbersEvaluation
from privrl_bench.evaluation.returns import ReturnEvaluation, ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.models.policy import make_policy
from privrl_bench.reporting.run_loader import load_run
from privrl_bench.reporting.runs import usable
from privrl_bench.training import wandb_logger as wandb_mirror
from privrl_bench.training.folder import read_lines
from privrl_bench.training.runner import run

NO_SCALING = FrozenScaling(None, None, 0.0)
EPISODES = 24


def evaluated(config, policy=None, aside=False):
    """One evaluation of two replicas with untrained policies."""
    spec = env_spec(config)
    policy = policy or make_policy(spec, [4])
    streams = [Streams(seed) for seed in (0, 1)]
    actor = torch.stack([policy.init(s.torch("init", 0)) for s in streams])
    words = (config, spec, policy, streams, EPISODES, False)
    evaluations = BackgroundEvaluator(ReturnEvaluator, *words, aside=aside)
    try:
        evaluations.begin(actor, 0, NO_SCALING)
        return evaluations.take()
    finally:
        evaluations.close()


@pytest.mark.parametrize("spoiled", ["obs", "huge", "reward", "reset"])
def test_episodes_with_non_finite_numbers_are_counted(spoiled):
    usual = evaluated(own("Clock"))
    found = evaluated(own("Clock", kwargs={"spoiled": spoiled}))
    cut = [one.lengths < other.lengths for one, other in zip(found, usual, strict=True)]
    unlucky = [int(each.sum()) for each in cut]
    assert all(0 < count < EPISODES for count in unlucky)
    assert [one.invalid for one in found] == unlucky
    assert [one.invalid for one in usual] == [0, 0]
    for one, count in zip(found, unlucky, strict=True):
        assert math.isnan(one.value)
        assert one.problem.startswith(f"return invalid: {count} of {EPISODES} evaluation episodes")
        assert one.metrics() == {"eval/episodes": EPISODES, "eval/invalid_episodes": count}


@pytest.mark.slow
def test_where_episodes_are_played_does_not_matter(monkeypatch):
    config = own("Clock", kwargs={"spoiled": "reward"})
    counts = [one.invalid for one in evaluated(config)]
    monkeypatch.setattr("privrl_bench.evaluation.evaluator._WORTH_A_PROCESS", -1.0)
    assert [one.invalid for one in evaluated(config, aside=True)] == counts


@pytest.mark.parametrize("way", ["vectorised", "compiled"])
def test_our_own_environments(way, monkeypatch):
    kind, name = (PendulumSlots, "pendulum") if way == "vectorised" else (CartPoleSlots, "cartpole")
    begin = kind.begin
    monkeypatch.setattr(kind, "begin", lambda self, rng: np.inf * begin(self, rng))
    config = replace(shipped(name), obs_scaling="none", reward_scaling="none")
    spec = env_spec(config)
    policy = DropoutPolicy(spec, (4,), 0.5) if way == "compiled" else None
    assert [one.invalid for one in evaluated(config, policy)] == [EPISODES] * 2


def test_actions_that_are_not_finite(monkeypatch):
    config = shipped("pendulum")
    policy = make_policy(env_spec(config), [4])
    init = policy.init
    monkeypatch.setattr(policy, "init", lambda g: init(g) * torch.nan)
    assert [one.invalid for one in evaluated(config, policy)] == [EPISODES] * 2


def test_finite_rewards_with_an_infinite_sum():
    from privrl_bench.evaluation.returns import _evaluations

    returns = np.array([[1.0, np.inf], [1.0, 2.0]])
    found = _evaluations(returns, np.ones((2, 2)), np.zeros((2, 2), bool))
    assert [one.invalid for one in found] == [1, 0]


def test_values_without_a_finite_error():
    found = NumbersEvaluation({"eval/mspbe": math.inf, "eval/value": 1.0})
    assert found.problem == "mspbe invalid: it is not finite"
    assert found.metrics() == {}
    assert math.isnan(found.value)


WORDS = [
    *("algo=dppg", "env=gym", "env.id=my_pkg:Clock-v0", "+env.kwargs.spoiled=reward", "rounds=2"),
    *("env.obs_scaling=none", "env.user_steps=8", "privacy.users_per_round=2", "algo.hidden=[4]"),
    *("algo.critic=none", "eval.episodes=12", "eval.every=1", "log=none", "env.check=false"),
]


class Sent:
    """Stands for a run of W&B."""

    def __init__(self):
        self.rows, self.codes = [], []
        self.summary = {}

    def log(self, row):
        self.rows.append(row)

    def finish(self, exit_code):
        self.codes.append(exit_code)


@pytest.mark.parametrize("solved", ["", "eval.solved=-100"])
def test_a_run_without_a_valid_last_evaluation_has_failed(tmp_path, capsys, monkeypatch, solved):
    sent = Sent()
    monkeypatch.setattr(wandb_mirror.WandbLogger, "_start", lambda *_: sent)
    words = [*WORDS, "log.wandb=offline", *filter(None, [solved])]
    (result,) = run([compose(words)], [tmp_path / "run"], [words])
    assert (result.status, result.exit_code) == ("failed", 1)
    folder = Path(result.folder)
    status = json.loads((folder / "status.json").read_text())
    (count,) = {row["eval/invalid_episodes"] for row in read_lines(folder / "metrics.jsonl")[-1:]}
    reason = (
        f"return invalid: {count} of 12 evaluation episodes had non-finite rewards, observations or "
        "actions"
    )
    assert status["status"] == "failed"
    assert status["reason"] == f"the last evaluation: {reason}"
    shown = capsys.readouterr()
    assert f"failed  the last evaluation: {reason}" in shown.err
    assert shown.err.count("  note    round 1: return invalid") == 1
    assert "done" not in shown.out
    assert result.summary["return"]["mean"] is None
    assert result.summary["epsilon"] > 0
    assert (folder / "policy.pt").exists()
    assert usable([load_run(folder)]) == []
    assert load_run(folder).curve()[0].tolist() == [0.0]  # before any data
    first, *later = sent.rows
    assert (first["steps"], len(later)) == (0, 2)
    assert not any("return" in name for row in later for name in row)
    assert sent.codes == [1]
    if solved:
        return
    # A rerun fails again, without another release.
    (again,) = run([compose(words)], [tmp_path / "run"], [words])
    assert (again.status, again.exit_code) == ("failed", 1)
    assert sum("digest" not in line for line in read_lines(folder / "ledger.jsonl")) == 2


def test_the_value_of_a_valid_evaluation():
    assert ReturnEvaluation(np.array([1.0, 3.0]), np.ones(2)).value == 2.0
