"""LSTD on small problems, and what values are judged by."""

from types import SimpleNamespace

import pytest
import torch
from evaluation_runs import SWIM, check_pieces, parts_of, theta_of

from privrl_bench.envs.registry import process_of
from privrl_bench.packs.offline.ope.mspbe import MspbeEvaluator, reference
from privrl_bench.packs.offline.ope.policy_evaluation import mspbe, solve
from privrl_bench.training.trainer import Trainer


@pytest.mark.slow
def test_off_policy_ratios_find_the_targets_value():
    """Uniform play, the value of a policy that goes right more often: LSTD with ratios nears the table's."""
    words = ("algo=lstd", *SWIM[:2], "privacy.population=9000")
    parts = parts_of(*words)
    swim_right = SimpleNamespace(
        probabilities=lambda obs: obs.new_tensor([0.2, 0.8]).expand(*obs.shape[:-1], 2)
    )
    parts.algo.target = swim_right
    session = Trainer(parts)
    session.step()
    truth = reference(parts.config.env, parts.spec, parts.algo).moments
    value = solve(truth.A, truth.b)
    found = parts.algo.actor(session.state)[0]
    assert float((found - value).norm() / value.norm()) < 0.15
    plain = theta_of(*words)[0]
    assert float((plain - value).norm() / value.norm()) > 0.3


def test_pieces_do_not_matter(monkeypatch):
    check_pieces("lstd", monkeypatch)


def test_errors_of_the_chain_are_exact():
    parts = parts_of("algo=lstd", "env.kwargs.n=40")
    truth = reference(parts.config.env, parts.spec, parts.algo)
    assert truth.exact
    assert float(mspbe(torch.zeros(39), truth.moments)) == pytest.approx(0.0125)
    assert truth.reward == pytest.approx(1 / 40)  # 1 in an episode of 40 steps


def test_a_sampled_reference_is_near_the_exact_one(monkeypatch):
    parts = parts_of("algo=lstd", "algo.reference=3000")
    exact = reference(parts.config.env, parts.spec, parts.algo)
    monkeypatch.setattr("privrl_bench.packs.offline.ope.mspbe.process_of", lambda config: None)
    sampled = reference(parts.config.env, parts.spec, parts.algo)
    assert not sampled.exact
    for a, b in zip(exact.moments, sampled.moments, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.01)
    assert sampled.reward == pytest.approx(exact.reward, rel=0.05)


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_the_value_of_the_start_is_in_the_environments_rewards(scale):
    parts = parts_of("algo=lstd", "env.reward_scaling=public", f"env.reward_scale={scale}")
    known = process_of(parts.config.env)
    values = known.values(0.99)
    theta = scale * torch.from_numpy(values)[None]
    (found,) = MspbeEvaluator(parts.config.env, parts.spec, parts.algo).evaluate(theta, 1, None)
    assert found.numbers["eval/value"] == pytest.approx(known.start @ values)
    assert found.value == pytest.approx(0.0, abs=1e-9)
