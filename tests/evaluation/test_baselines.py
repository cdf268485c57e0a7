"""Policies without learning, and evaluations before any data."""

import functools
import json
from pathlib import Path

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import env_spec
from privrl_bench.evaluation import baselines
from privrl_bench.evaluation.baselines import references
from privrl_bench.training.folder import read_lines
from privrl_bench.training.loop import due
from privrl_bench.training.results import result_text
from privrl_bench.training.runner import run

WORDS = (
    *("algo=dppg", "env=cartpole", "log=none", "log.plot=false", "log.progress=false"),
    *("privacy.users_per_round=4", "env.user_steps=16", "algo.hidden=[8]", "eval.episodes=2"),
)


def test_references_are_measured_once_and_depend_on_nothing_but_the_settings(monkeypatch):
    config = compose(["env=cartpole"]).env
    spec = env_spec(config)
    monkeypatch.setattr(baselines, "_known", {})
    found = references(config, spec, 10**6)
    assert list(found) == ["push where the pole falls", "random"]
    assert found["random"]["episodes"] == 20
    assert 10 < found["random"]["low"] < found["random"]["mean"] < found["random"]["high"] < 60
    monkeypatch.setattr(baselines, "trivial_episodes", lambda *_: pytest.fail("measured again"))
    assert references(config, spec, 10**6) == found


def test_references_of_a_short_run_are_few_episodes(monkeypatch):
    config = compose(["env=pendulum"]).env  # 200 steps an episode
    monkeypatch.setattr(baselines, "_known", {})
    found = references(config, env_spec(config), 500)
    assert set(found) == {"pump energy", "do nothing", "random"}
    assert {one["episodes"] for one in found.values()} == {4}  # two at a time until 500 steps


def test_twenty_evaluations_or_one_after_every_round():
    for planned, expected in ((1, 1), (6, 6), (20, 20), (33, 20), (1000, 20)):
        times = [r for r in range(planned + 1) if due("auto", r, planned, 64)]
        assert times[0] == 0
        assert times[-1] == planned
        assert len(times) == expected + 1


@pytest.fixture(scope="module")
def other_ledger(tmp_path_factory):
    """Trains once with other evaluations, and returns the bytes of the ledger."""

    @functools.cache
    def ledger():
        words = [*WORDS, "rounds=4", "eval.every=128"]
        (other,) = run([compose(words)], [tmp_path_factory.mktemp("other") / "run"], [words])
        return (Path(other.folder) / "ledger.jsonl").read_bytes()

    return ledger


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("every", ["auto", "64", "0"])
def test_evaluations_change_nothing_that_is_trained(tmp_path, every, other_ledger):
    words = [*WORDS, "rounds=4", f"eval.every={every}"]
    (result,) = run([compose(words)], [tmp_path / "run"], [words])
    ledger = (Path(result.folder) / "ledger.jsonl").read_bytes()
    assert ledger == other_ledger()  # with digests of what was released
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    evaluated = [row["steps"] for row in rows if "eval/return_mean" in row]
    assert evaluated == ([256] if every == "0" else [0, 64, 128, 192, 256])
    if every != "0":
        assert rows[0]["privacy/epsilon"] == 0.0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["references"]["random"]["mean"] > 8
    shown = summary["return"]
    assert shown["low"] <= shown["mean"] <= shown["high"]
    text = result_text(summary, tmp_path / "run", [])
    worse = shown["high"] < summary["references"]["random"]["mean"]
    assert ("worse than random actions" in text) == worse
    shown["mean"] = shown["high"] = summary["references"]["random"]["mean"] - 0.1
    assert "worse than random actions: see docs/questions.md" in result_text(summary, tmp_path, [])
