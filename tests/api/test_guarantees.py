"""`pb.audit_leaks` and `pb.audit_epsilon`: what the commands print, as objects."""

import json

import pytest

import privrl_bench as pb

SMALL = (
    "algo=dppg env=cartpole algo.hidden=[8] algo.epochs=1 algo.minibatches=1 "
    "algo.critic_features=16 env.user_steps=4 privacy.users_per_round=6 eval.episodes=1"
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_leak_test():
    audit = pb.audit_leaks(SMALL, privacy={"z": 1})
    assert audit.ok
    assert audit.report.status == "formal"
    assert not audit.review
    for bad in ({"user": -1}, {"round_index": -1}):
        with pytest.raises(pb.ConfigError, match="must be an integer >= 0, got -1"):
            pb.audit_leaks(SMALL, **bad)


def test_a_lower_bound_on_epsilon(tmp_path, capsys):
    options = pb.AuditOptions(scores=200)
    audit = pb.audit_epsilon(f"{SMALL} privacy.z=1", folder=tmp_path / "audit", options=options)
    assert not capsys.readouterr().out
    assert audit.ok
    (finding,) = audit.findings
    assert 0 < finding.best.epsilon < audit.guarantee.epsilon
    assert (
        json.loads((tmp_path / "audit" / "audit.json").read_text())["overrides"][-1]
        == "privacy.z=1"
    )
    for options, said in (
        (pb.AuditOptions(attack="canari"), "attack: must be one of .*did you mean canary"),
        (pb.AuditOptions(scores=2), "scores: must be an integer >= 20, got 2"),
        (pb.AuditOptions(confidence=1.0), "confidence: must be in"),
    ):
        with pytest.raises(pb.ConfigError, match=said):
            pb.audit_epsilon(SMALL, options=options)
