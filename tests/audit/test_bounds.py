"""Lower bounds: known answers, and that they are not above the truth more often than they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from privrl_bench.audit import bounds
from privrl_bench.audit.one_run import right_guesses

# -- known answers


@pytest.mark.parametrize(
    ("hits", "trials", "alpha", "expected"),
    [
        (0, 100, 0.05, 1 - 0.05**0.01),
        (0, 10, 0.025, 0.308497),  # textbook 95 % interval of 0 of 10
        (5, 100, 0.025, 0.112835),  # and of 5 of 100
        (10, 10, 0.05, 1.0),
    ],
)
def test_clopper_pearson_upper_limits(hits, trials, alpha, expected):
    assert bounds.upper_limit(hits, trials, alpha) == pytest.approx(expected, abs=2e-6)


@given(trials=st.integers(1, 500), share=st.floats(0, 1), alpha=st.sampled_from([0.05, 0.01]))
def test_a_clopper_pearson_limit_solves_its_own_equation(trials, share, alpha):
    hits = round(share * trials)
    high = bounds.upper_limit(hits, trials, alpha)
    assert hits / trials <= high
    if hits < trials:
        assert binom.cdf(hits, trials, high) == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(hits, trials):
    with pytest.raises(ValueError, match="hits"):
        bounds.upper_limit(hits, trials, 0.05)


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "expected"),
    [
        (1000, 600, 600, 5.2704),
        (1000, 1000, 1000, 5.7823),
        (100, 100, 100, 3.4902),
        (1000, 1000, 690, 0.6856),
        (10_000, 2000, 1900, 2.7679),
    ],
)
def test_one_run_bound_matches_jax_privacy(canaries, guesses, right, expected):
    got = bounds.one_run_epsilon(canaries, guesses, right, 1e-5)
    assert got == pytest.approx(expected, abs=1e-4)


def test_one_run_bound_of_half_right_guesses_is_nothing():
    assert bounds.one_run_epsilon(1000, 1000, 500, 1e-5) == 0.0
    assert bounds.one_run_epsilon(1000, 0, 0, 1e-5) == 0.0


# z, scores of each kind, epsilon of the gdp form, of the direct form; delta 1e-3, expected counts
POWER = [
    (1.0, 100, 1.20, 0.53),
    (1.0, 1000, 2.50, 1.42),
    (1.0, 10_000, 2.94, 2.14),
    (0.5, 1000, 6.64, 3.23),
    (0.5, 10_000, 7.29, 4.44),
    (3.0, 1000, 0.38, None),
    (3.0, 10_000, 0.69, None),
    (0.25, 10_000, 18.9, None),
]


def ideal_scores(mu, count):
    """Quantiles: as even as scores can be."""
    even = norm.ppf((np.arange(count) + 0.5) / count)
    return even + mu, even


@pytest.mark.parametrize(("z", "count", "gdp", "direct"), POWER)
def test_bounds_have_the_power_that_was_computed_elsewhere(z, count, gdp, direct):
    mu = 1 / z
    inside, outside = ideal_scores(mu, count)
    got = bounds.gdp_bound(inside, outside, mu / 2.0, 1e-3, 0.95)
    assert got.epsilon == pytest.approx(gdp, rel=0.03, abs=0.02)
    if direct is not None:
        at = bounds.tail(mu, count, 1e-3, 0.95)
        got = bounds.direct_bound(inside, outside, at, 1e-3, 0.95)
        assert got.epsilon == pytest.approx(direct, rel=0.05, abs=0.03)


@pytest.mark.parametrize(("z", "epsilon"), [(0.5, 9.997256), (1.0, 4.377178), (2.0, 1.993091)])
def test_epsilon_of_mu_is_the_exact_gaussian(z, epsilon):
    assert bounds.epsilon_of_mu(1 / z, 1e-5) == pytest.approx(epsilon, abs=1e-6)
    assert bounds.epsilon_of_mu(0.0, 1e-5) == 0.0


# -- properties


@given(mu=st.floats(0.01, 8), at=st.floats(-4, 10), delta=st.sampled_from([1e-3, 1e-5]))
def test_exact_rates_of_a_gaussian_give_its_mu_and_at_most_its_epsilon(mu, at, delta):
    fpr, fnr = float(norm.sf(at)), float(norm.cdf(at - mu))
    if min(fpr, fnr) > 1e-12:
        assert bounds.mu_from_rates(fpr, fnr) == pytest.approx(mu, rel=1e-4, abs=1e-4)
    if min(fpr, fnr) > 0:
        allowed = bounds.epsilon_of_mu(mu, delta)
        assert bounds.epsilon_direct(fpr, fnr, delta) <= allowed * (1 + 1e-6) + 1e-6


@given(fpr=st.floats(1e-6, 1), fnr=st.floats(1e-6, 1))
def test_roles_can_be_swapped_and_chance_tells_nothing(fpr, fnr):
    assert bounds.epsilon_direct(fpr, fnr, 1e-5) == bounds.epsilon_direct(fnr, fpr, 1e-5)
    if fpr + fnr >= 1:
        assert bounds.mu_from_rates(fpr, fnr) == pytest.approx(0.0, abs=1e-9)
        assert bounds.epsilon_direct(fpr, fnr, 1e-5) == 0.0


@given(right=st.integers(0, 200), more=st.integers(1, 50))
@settings(max_examples=20)
def test_one_run_bound_grows_with_right_guesses_and_falls_with_delta(right, more):
    fewer = bounds.one_run_epsilon(300, 250, right, 1e-5)
    assert bounds.one_run_epsilon(300, 250, min(right + more, 250), 1e-5) >= fewer
    assert bounds.one_run_epsilon(300, 250, right, 1e-3) <= fewer
    assert bounds.one_run_epsilon(300, 250, right, 1e-5, confidence=0.99) <= fewer


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("count", [40, 1000])
def test_bounds_of_simulated_gaussians_are_above_the_truth_as_seldom_as_they_say(mu, count):
    rng = np.random.default_rng([count, round(10 * mu)])
    trials, misses = 120, {"gdp": 0, "direct": 0}
    truth = bounds.epsilon_of_mu(mu, 1e-5)
    at = bounds.tail(mu, count, 1e-5, 0.9)
    for _ in range(trials):
        inside, outside = rng.standard_normal(count) + mu, rng.standard_normal(count)
        for bound in (
            bounds.gdp_bound(inside, outside, mu / 2.0, 1e-5, 0.9),
            bounds.direct_bound(inside, outside, at, 1e-5, 0.9),
        ):
            misses[bound.form] += bound.epsilon > truth + 1e-9
    # A rate of 0.1 gives more than 24 of 120 with chance 3e-4.
    assert max(misses.values()) <= 24, misses


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_run_bound_of_randomised_response_is_seldom_above_the_truth(epsilon):
    rng = np.random.default_rng(5)
    rights = rng.binomial(400, 1 / (1 + math.exp(-epsilon)), size=100)
    found = [bounds.one_run_epsilon(400, 400, int(v), 1e-9) for v in rights]
    misses = sum(value > epsilon for value in found)
    assert misses <= 12  # a rate of 5 % gives more with chance 2e-3
    assert np.mean(found) > 0.6 * epsilon


def test_one_run_bound_of_simulated_gaussians_is_below_the_truth_and_not_nothing():
    rng = np.random.default_rng(6)
    canaries, guesses = bounds.one_run_plan(1.0, 2000, 1e-5, 0.95)
    truth, found = bounds.epsilon_of_mu(1.0, 1e-5), []
    for _ in range(50):
        coins = rng.random(canaries) < 0.5
        scores = rng.standard_normal(canaries) + coins
        right = right_guesses(scores, coins, guesses)
        found.append(bounds.one_run_epsilon(canaries, guesses, right, 1e-5))
    assert max(found) < truth
    assert np.median(found) > 0.5


def test_surest_guesses_come_from_both_ends():
    scores = np.array([5.0, -3.0, 0.1, 4.0, -2.0, 0.0])
    coins = np.array([True, False, False, True, True, True])
    assert right_guesses(scores, coins, 4) == 3  # 5 and 4 in, -3 out; -2 was in
    assert right_guesses(scores, coins, 2) == 2


def test_scores_that_do_not_vary_tell_nothing():
    same = np.zeros(10)
    assert bounds.gdp_bound(same, same, 0.0, 1e-5, 0.95).epsilon == 0.0
    assert bounds.direct_bound(same, same, 0.0, 1e-5, 0.95).epsilon == 0.0
