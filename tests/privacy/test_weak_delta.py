"""A large delta is a caveat, or a note where the number of users is only what the run meets."""

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import WEAK_DELTA, Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import SeededNoise
from privrl_bench.training.runner import run

POISSON = {"sampling": "poisson", "adjacency": "add_or_remove", "population": 1000}


def guarantee(rounds=10, **changes):
    config = PrivacyConfig(**{"z": 1.0, "clip": 1.0, "users_per_round": 5, **changes})
    blocks, noise = (Block("actor", 4, 1.0),), [SeededNoise(0, 7)]
    return Gate([config], blocks, Unit("u", 1), rounds, noise, [Ledger(None)]).guarantee(0)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"delta": 0.5}, "caveat"),
        ({"delta": 1e-2}, "caveat"),
        ({"delta": 9e-3, "rounds": 20}, None),  # 100 users
        ({"delta": 9e-3, "rounds": 100}, "note"),  # 500 users, of nobody knows how many
        ({"delta": 1e-5}, None),
        ({"delta": 1e-3, **POISSON}, None),  # exactly 1 / population
        ({"delta": 1.1e-3, **POISSON}, "caveat"),
        ({"delta": 1e-5, "rounds": 50_000}, "note"),
        ({"delta": 0.5, "mechanism": "none", "z": 0.0}, None),
    ],
)
def test_where_a_large_delta_stands(changes, where):
    found = guarantee(**changes)
    assert (WEAK_DELTA in found.caveats) == (where == "caveat")
    assert (WEAK_DELTA in found.notes) == (where == "note")
    if changes.get("mechanism") != "none":
        assert found.status == ("heuristic" if where == "caveat" else "formal")
    if where:
        text = {**found.caveats, **found.notes}[WEAK_DELTA]
        assert text.startswith(f"privacy.delta={changes['delta']:g} is ")


def test_the_plan_warns(tmp_path, capsys):
    words = ["algo=dppg", "env=cartpole", "env.user=fresh", "privacy.delta=0.5", "privacy.z=1"]
    run([compose([*words, "plan_only=true", "log=none"])], [tmp_path / "run"], [[]])
    shown = capsys.readouterr().out
    assert "  warning weak delta: privacy.delta=0.5 is not below 0.01" in shown
    assert "at delta 0.5, heuristic: " in shown
    assert "; not covered: weak delta" in shown
