"""Cohorts of a fixed size: each user is in one round, nothing is drawn."""

import pytest
from test_gate import make_account

from privrl_bench.errors import PrivacyError

KNOWN_EPSILON = "privacy/test_gate.py::test_planned_and_ledger_epsilon_of_a_lone_release"
SENSITIVITY = "privacy/test_fixed.py::test_each_user_is_in_one_round"
LEAKS = "audit/test_leaks.py::test_what_is_found_is_what_is_declared"
AUDIT = "audit/test_planted_defects.py::test_the_shipped_code_is_not_contradicted"


def test_each_user_is_in_one_round():
    plan = make_account(seeds=(0, 1))
    assert plan.draw(5, None, False).sizes == [4, 4]
    rounds = [plan.draw(index, 8, True) for index in range(2)]
    assert [one.numbers()[1].tolist() for one in rounds] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(PrivacyError, match="again"):
        plan.draw(2, 8, True)
    with pytest.raises(PrivacyError, match="not drawn"):
        plan.draw(0, 8, False)


def test_a_replica_that_has_ended_has_no_users():
    plan = make_account(seeds=(0, 1))
    plan.end(0)
    assert plan.draw(0, None, False).sizes == plan.expected_cohort() == [0, 4]
    assert plan.draw(0, None, False).members is None
