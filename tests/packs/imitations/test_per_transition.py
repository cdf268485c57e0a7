"""Noise on the gradients of single transitions: its epsilon; the algorithm's part is in test_dqn_replay.py."""

import math

import pytest

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent

KNOWN_EPSILON = (
    "packs/imitations/test_per_transition.py::test_a_known_epsilon_whatever_the_number_of_rounds"
)
SENSITIVITY = (
    "packs/imitations/test_per_transition.py::test_a_transition_moves_a_whole_memory_by_two_clips"
)
LEAKS = "audit/test_leaks.py::test_noise_on_transitions_is_outside_the_gate"
AUDIT = "packs/imitations/test_dqn_replay.py::test_noise_on_transitions_has_the_papers_size"


def event(z, memory=10_000, batch=128):
    return ReleaseEvent("per_transition", z, "replace_one", 1.0, memory, batch, sampling="fixed")


def test_a_known_epsilon_whatever_the_number_of_rounds():
    assert ledger_epsilon([event(0.4)], 1e-5) == pytest.approx(5.84, abs=5e-3)
    for accountant in ("pld", "gaussian", "rdp"):
        assert ledger_epsilon([event(0.4)] * 9, 1e-5, accountant) == ledger_epsilon(
            [event(0.4)], 1e-5
        )
    assert ledger_epsilon([event(0.0)], 1e-5) == math.inf


def test_a_transition_moves_a_whole_memory_by_two_clips():
    """B = M: no draw. M updates, each a Gaussian mechanism with z sqrt(B) / 2."""
    plain = ReleaseEvent("gaussian", 0.4 * math.sqrt(50) / 2, "zero_out", sampling="fixed")
    found = ledger_epsilon([event(0.4, 50, 50)], 1e-5)
    assert found == ledger_epsilon([plain] * 50, 1e-5, "rdp")


def test_releases_that_have_no_common_analysis_are_refused():
    def of(**changes):
        known = {
            "z": 1.0,
            "adjacency": "replace_one",
            "population": 100,
            "cap": 10,
            "sampling": "fixed",
        }
        return ReleaseEvent("per_transition", **(known | changes))

    with pytest.raises(PrivacyError, match="one size of memory"):
        ledger_epsilon([of(), of(z=0.5, population=1000)], 1e-5)
    with pytest.raises(PrivacyError, match="replace_one only"):
        ledger_epsilon([of(adjacency="zero_out", cap=100)], 1e-5)
    with pytest.raises(PrivacyError, match="no mechanism has ledger lines"):
        ledger_epsilon([ReleaseEvent("unheard_of", 1.0, "zero_out", sampling="fixed")], 1e-5)
