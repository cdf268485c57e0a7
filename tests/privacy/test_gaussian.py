"""The Gaussian mechanism at the gate; most of its tests are in test_gate.py and test_accountant.py."""

import pytest

from privrl_bench.privacy.accounting.accountants import epsilon
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent

KNOWN_EPSILON = "privacy/test_accountant.py::test_one_gaussian_is_exact"
SENSITIVITY = (
    "privacy/test_gate.py::test_zeroing_one_user_moves_the_noised_sum_by_at_most_one_joint_unit"
)
LEAKS = "audit/test_leaks.py::test_what_is_found_is_what_is_declared"
AUDIT = "audit/test_planted_defects.py::test_the_shipped_code_is_not_contradicted"


def test_its_event_is_dp_accountings_own():
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

    event = SelfComposedDpEvent(GaussianDpEvent(2.0), 3)
    for adjacency in ("zero_out", "replace_one"):
        for accountant in ("pld", "rdp", "gaussian"):
            found = epsilon(event, 1e-5, accountant, adjacency)
            line = ReleaseEvent("gaussian", 2.0, adjacency, sampling="fixed")
            assert found == ledger_epsilon([line] * 3, 1e-5, accountant)
    assert epsilon(GaussianDpEvent(1.0), 1e-5) == pytest.approx(4.377178, abs=1e-6)


def test_events_of_dp_accounting_alone_are_analysed_by_dp_accounting():
    from dp_accounting import LaplaceDpEvent

    assert epsilon(LaplaceDpEvent(2.0), 1e-9) == pytest.approx(0.5, abs=1e-3)
    assert 0.5 <= epsilon(LaplaceDpEvent(2.0), 1e-9, "rdp") < 0.52
