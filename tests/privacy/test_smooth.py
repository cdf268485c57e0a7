"""Output perturbation by smooth sensitivity: its theorem in numbers, and what the gate does with it."""

import math

import pytest
import torch
from helpers import release
from scipy.stats import norm
from test_uniform_single_user import GRID, gate, hockey_stick

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.mechanisms import mechanism_class
from privrl_bench.privacy.mechanisms.smooth import (
    noise_factor,
    require_admissible,
    smoothness,
    spent_delta,
)
from privrl_bench.privacy.noise import SeededNoise

KNOWN_EPSILON = "privacy/test_smooth.py::test_two_smooth_releases_have_no_bound_at_one_delta"
SENSITIVITY = (
    "packs/offline/test_policy_evaluation.py::test_the_bound_of_dp_lsw_is_reached_by_one_state"
)
LEAKS = "audit/test_leaks.py::test_evaluating_a_policy_opens_no_path"
AUDIT = mechanism_class("smooth").not_auditable


@pytest.mark.parametrize("target", [0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("size", [1, 6, 40, 1000])
def test_smooth_noise_spends_no_more_than_delta(target, delta, size):
    require_admissible(target, delta, size)


def test_the_costs_of_smooth_noise_are_exact():
    """Against numbers from densities in one dimension."""
    half, wide = 0.25, math.exp(0.2)
    moved = hockey_stick(norm.pdf(GRID, loc=0.3), norm.pdf(GRID), half)
    stretched = max(
        hockey_stick(norm.pdf(GRID), norm.pdf(GRID, scale=s), half) for s in (wide, 1 / wide)
    )
    both = max(moved + math.exp(half) * stretched, stretched + math.exp(half) * moved)
    assert spent_delta(2 * half, 0.3, 0.2, 1) == pytest.approx(both, abs=1e-7)


def test_an_epsilon_that_is_not_proven_is_refused():
    with pytest.raises(PrivacyError, match="not proven for epsilon 20"):
        require_admissible(20.0, 1e-5, 2)
    with pytest.raises(PrivacyError, match="not proven"):
        gate(mechanism="smooth", sampling="full_batch", epsilon=20.0, z=1.0)


def smooth_plan(rounds=1):
    return gate(rounds, mechanism="smooth", sampling="full_batch", epsilon=0.5, z=1.0)


def answer(bound):
    valid = torch.ones(1, 1, dtype=torch.bool)
    rows = {"theta": torch.full((1, 1, 4), 7.0)}
    return Contribution(rows, valid, smooth=torch.tensor([bound]))


def test_the_gate_draws_the_noise_of_a_smooth_bound():
    seen = []
    for bound in (1.0, 2.0):
        plan = smooth_plan()
        seen.append(release(plan, answer(bound), 0).values["theta"] - 7.0)
    torch.testing.assert_close(seen[1], 2.0 * seen[0], rtol=1e-4, atol=0.2)
    unit = SeededNoise(0, 7).normal([4], 0, 0)[0]
    torch.testing.assert_close(
        seen[0][0].double(), noise_factor(0.5, 1e-5) * unit, rtol=1e-3, atol=0.1
    )
    assert plan.spent_epsilon(0) == 0.5
    assert plan.guarantee(0, 1).epsilon == 0.5
    line = plan.ledgers[0].lines[0]
    assert (line["mechanism"], line["epsilon"], line["delta"]) == ("smooth", 0.5, 1e-5)
    assert not {"bound", "scale", "blocks"} & set(line)  # its size is a secret
    assert smoothness(0.5, 1e-5, 4) > 0


@pytest.mark.parametrize("bound", [0.0, 0.001, math.nan, math.inf * 0])
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(PrivacyError, match="smooth bound is not finite"):
        release(smooth_plan(), answer(bound), 0)


def test_mechanisms_do_not_mix():
    with pytest.raises(PrivacyError, match="go together"):
        release(gate(), answer(1.0), 0)
    rows = {"theta": torch.zeros(1, 1, 4)}
    with pytest.raises(PrivacyError, match="go together"):
        release(smooth_plan(), Contribution(rows, torch.ones(1, 1, dtype=torch.bool)), 0)


def test_two_smooth_releases_have_no_bound_at_one_delta():
    one = smooth_plan().event(0)
    assert ledger_epsilon([one], 1e-5) == 0.5
    assert ledger_epsilon([one], 1e-6) == math.inf
    assert ledger_epsilon([one, one], 1e-5) == math.inf
