"""Budgets: the facts' tables for PriMORL's Poisson sampling, and bisections against their neighbours."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.calibrate import rounds_for, z_for
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent


def primorl(z):
    """Poisson sampling of trajectories with q = 1e-3."""
    return ReleaseEvent("gaussian", z, "add_or_remove", 1e-3, sampling="poisson")


def plain(z):
    return ReleaseEvent("gaussian", z, "zero_out", sampling="fixed")


GRID = {
    0.25: {1000: (38.4467, 32.1971), 2000: (49.1757, 40.8791), 5000: (68.8859, 59.506)},
    0.38: {1000: (10.3993, 8.3146), 2000: (11.972, 9.7531), 10000: (18.8563, 16.0099)},
    0.45: {1000: (6.0957, 4.7395), 5000: (8.102, 6.573), 10000: (9.6324, 8.0124)},
    1.00: {1000: (0.6778, 0.1490), 5000: (0.7266, 0.3320), 10000: (0.7877, 0.4761)},
}


@pytest.mark.parametrize("z", GRID)
def test_epsilons_of_poisson_rounds(z) -> None:
    """dp-accounting 0.6.0: RDP with default orders, PLD with cells that scale with the loss."""
    for rounds, (rdp, pld) in GRID[z].items():
        many = Counter({primorl(z): rounds})
        assert ledger_epsilon(many, 1e-5, "rdp") == pytest.approx(rdp, abs=2e-3)
        assert ledger_epsilon(many, 1e-5, "pld") == pytest.approx(pld, abs=2e-3)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("z", "printed", "low", "high", "pld"),
    [
        (0.25, 85.0, 7446, 7464, (10421, 10444)),
        (0.25, 94.2, 9715, 9739, (12655, 12679)),
        (0.38, 17.0, 7324, 7453, (11628, 11806)),
        (0.45, 8.2, 5121, 5382, (10552, 10959)),
    ],
)
def test_rounds_behind_primorls_printed_epsilons(z, printed, low, high, pld) -> None:
    """Every T in the range rounds to the printed epsilon. Source: facts, table 0.2."""
    assert rounds_for(printed + 0.05, primorl(z), 1e-5, "rdp") == pytest.approx(high, abs=2)
    assert rounds_for(printed - 0.05, primorl(z), 1e-5, "rdp") == pytest.approx(low, abs=3)
    for rounds in pld:  # PLD takes seconds for each
        found = ledger_epsilon(Counter({primorl(z): rounds}), 1e-5, "pld")
        assert found == pytest.approx(printed, abs=0.052)


@settings(max_examples=15)
@given(st.floats(0.3, 30.0), st.floats(0.5, 10.0))
def test_one_round_more_would_be_too_much(budget, z) -> None:
    found = rounds_for(budget, plain(z), 1e-5)
    if found:
        assert ledger_epsilon([plain(z)] * found, 1e-5) <= budget
    assert ledger_epsilon([plain(z)] * (found + 1), 1e-5) > budget


@settings(max_examples=15)
@given(st.floats(0.05, 50.0), st.integers(1, 2000))
def test_a_little_less_noise_would_be_too_little(budget, count) -> None:
    z = z_for(budget, plain, count, 1e-5)
    assert ledger_epsilon(Counter({plain(z): count}), 1e-5) <= budget
    assert ledger_epsilon(Counter({plain(0.997 * z): count}), 1e-5) > budget


def test_limits() -> None:
    assert rounds_for(1.0, plain(1.0), 1e-5) == 0
    assert rounds_for(1.0, plain(1000.0), 1e-5, most=50) == 50
    assert z_for(8.0, primorl, 1000, 1e-5, "rdp") == pytest.approx(0.415, abs=0.01)
    with pytest.raises(PrivacyError, match="no noise multiplier"):
        z_for(1e-9, plain, 10**6, 1e-12)
