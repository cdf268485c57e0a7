"""Poisson cohorts: members and sizes; epsilon is in test_accountant.py and test_calibrate.py."""

import numpy as np
import pytest
from test_gate import make_plan

from privrl_bench.config.compose import compose
from privrl_bench.errors import PrivacyError
from privrl_bench.experiment.builder import build
from privrl_bench.privacy.accounting.releases import epsilon_paper

KNOWN_EPSILON = "privacy/test_accountant.py::test_poisson_sampling_matches_the_regression_grid"
SENSITIVITY = "privacy/test_poisson.py::test_each_user_joins_with_the_same_probability"
LEAKS = "audit/test_leaks.py::test_poisson_cohorts"
AUDIT = "audit/test_planted_defects.py::test_the_shipped_code_is_not_contradicted"


def plan():
    return make_plan(sampling="poisson", population=40, adjacency="add_or_remove")


def test_each_user_joins_with_the_same_probability():
    """q = 4 / 40, independently; with 30 users there, numbers from 30 on are absent users'."""
    gate = plan()
    drawn = [gate.draw(index, 30, False) for index in range(4000)]
    assert [len(one.numbers()[0]) for one in drawn] == [one.sizes[0] for one in drawn]
    counts = np.bincount(np.concatenate([one.numbers()[0] for one in drawn]), minlength=40)
    assert ((counts - 400) ** 2 / 400).sum() < 80  # chi-square of 40
    assert all(len(set(one.numbers()[0])) == one.sizes[0] for one in drawn)


def test_a_draw_is_made_once_a_round_and_stays_within_the_population():
    gate = plan()
    assert np.array_equal(gate.draw(3, 40, False).numbers()[0], gate.draw(3, 40, True).numbers()[0])
    with pytest.raises(PrivacyError, match="population"):
        gate.draw(3, 41, False)


def test_a_cohort_of_all_users_has_the_papers_formula():
    words = ["env=cartpole", "privacy=poisson", "privacy.population=8", "privacy.users_per_round=8"]
    gate = build([compose([*words, "privacy.adjacency=zero_out", "rounds=5"])], [None]).gate
    assert gate.mechanism.paper_epsilon(0) == pytest.approx(epsilon_paper(1.0, 1e-5))
