"""Epsilon of keeping the best of a random number of runs."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from privrl_bench.errors import PrivacyError
from privrl_bench.packs.tuning.best_of_runs import Profile, RunCount, profile_epsilon
from privrl_bench.privacy.accounting.exact_gaussian import epsilon_at

POISSON = math.inf
SHAPES = (POISSON, 0.0, 0.5, 1.0, 3.0)


def gaussian(z):
    return lambda delta: epsilon_at(z, delta)


def generating(runs):
    """f' of a distribution of K, written from Papernot and Steinke 2022, section 3."""
    if runs.poisson:
        return lambda x: runs.mean * np.exp(runs.mean * (x - 1))
    gamma, shape = runs.gamma, runs.shape
    if shape == 0:
        return lambda x: (1 - gamma) / (math.log(1 / gamma) * (1 - (1 - gamma) * x))
    return lambda x: (
        shape * (1 - gamma) * (1 - (1 - gamma) * x) ** (-shape - 1) / (gamma**-shape - 1)
    )


def exact_delta(z, runs, epsilon):
    """delta of the best of K outputs of a Gaussian mechanism, the output being the score: the worst order."""
    slope, shift = generating(runs), 1.0 / z

    def excess(y, first, second):
        own = stats.norm.pdf(y - first) * slope(stats.norm.cdf(y - first))
        other = stats.norm.pdf(y - second) * slope(stats.norm.cdf(y - second))
        return np.maximum(own - math.exp(epsilon) * other, 0.0)

    y = np.linspace(-12, 12 + shift, 200_001)
    return max(integrate.trapezoid(excess(y, *order), y) for order in ((0.0, shift), (shift, 0.0)))


# --- the distributions


@pytest.mark.parametrize("mean", [1.5, 4.0, 16.0])
def test_distributions_are_those_of_scipy(mean):
    logarithmic, geometric = RunCount(mean, 0.0), RunCount(mean, 1.0)
    assert stats.logser(1 - logarithmic.gamma).mean() == pytest.approx(mean)
    assert stats.geom(geometric.gamma).mean() == pytest.approx(mean)
    for shape in (0.5, 3.0):
        runs = RunCount(mean, shape)
        law = stats.nbinom(shape, runs.gamma)
        assert law.mean() / law.sf(0) == pytest.approx(mean)


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_follow_the_distribution(shape):
    runs = RunCount(6.0, shape)
    grid = (np.arange(20_000) + 0.5) / 20_000
    drawn = np.array([runs.draw(float(u)) for u in grid])
    laws = {POISSON: stats.poisson(6.0).pmf, 0.0: stats.logser(1 - RunCount(6.0, 0.0).gamma).pmf}
    law = laws.get(shape) or (
        lambda k: stats.nbinom(shape, runs.gamma).pmf(k) / stats.nbinom(shape, runs.gamma).sf(0)
    )
    for k in range(0 if runs.poisson else 1, 12):
        assert (drawn == k).mean() == pytest.approx(law(k), abs=1e-4)
    assert drawn.min() == (0 if runs.poisson else 1)
    assert drawn.mean() == pytest.approx(6.0, rel=1e-2)


@pytest.mark.parametrize(
    ("mean", "shape"), [(0.5, POISSON), (1.0, 0.0), (math.inf, 1.0), (2.0, -0.1), (math.nan, 1.0)]
)
def test_no_such_distribution(mean, shape):
    with pytest.raises(PrivacyError, match="number of runs"):
        RunCount(mean, shape)


# --- the profile


@pytest.mark.parametrize("z", [0.3, 1.0, 5.0])
def test_profile_is_a_tight_upper_bound(z):
    profile = Profile(gaussian(z), 1e-10)
    epsilons = np.linspace(-4, 12, 97)
    mu = 1 / z
    exact = stats.norm.cdf(mu / 2 - epsilons / mu) - np.exp(
        epsilons + stats.norm.logcdf(-mu / 2 - epsilons / mu)
    )
    found = profile.delta(epsilons)
    assert (found >= exact - 1e-12).all()
    assert (found <= 1.02 * exact + 1e-10).all()


# --- known answers


@pytest.mark.parametrize(
    ("epsilon", "mean", "shape", "answer"),
    [  # Papernot and Steinke 2022: (2 + eta) epsilon; eta = 1: Liu and Talwar's 3 epsilon
        (0.1, 4.0, 1.0, 0.3),
        (1.0, 4.0, 1.0, 3.0),
        (1.0, 64.0, 1.0, 3.0),
        (0.5, 8.0, 0.0, 1.0),
        (1.0, 32.0, 0.0, 2.0),
        (1.0, 8.0, 0.5, 2.5),
        (2.0, 64.0, 3.0, 10.0),
    ],
)
def test_pure_runs(epsilon, mean, shape, answer):
    found = profile_epsilon(lambda delta: epsilon, RunCount(mean, shape), 1e-6)
    assert found == pytest.approx(answer, abs=1e-3)


# --- against the exact epsilon of one search


@pytest.mark.fast_every(11)
@pytest.mark.parametrize(
    ("z", "mean", "shape"), list(itertools.product((0.7, 2.0, 6.0), (1.5, 8.0), SHAPES))
)
def test_bound_covers_the_best_of_gaussian_outputs(z, mean, shape):
    runs = RunCount(mean, shape)
    for delta in (1e-3, 1e-6):
        claimed = profile_epsilon(gaussian(z), runs, delta)
        assert exact_delta(z, runs, claimed) <= delta
        assert exact_delta(z, runs, 0.4 * claimed) > delta  # not empty


@pytest.mark.parametrize("shape", SHAPES)
def test_bound_grows_with_the_runs_and_is_above_one_run(shape):
    found = [profile_epsilon(gaussian(1.0), RunCount(m, shape), 1e-5) for m in (1.01, 2, 8, 64)]
    assert found == sorted(found)
    assert found[0] >= epsilon_at(1.0, 1e-5)


def test_no_guarantee_of_one_run_is_none_of_the_search():
    assert profile_epsilon(lambda delta: math.inf, RunCount(8.0, POISSON), 1e-5) == math.inf


def test_simulated_search_agrees_with_the_density():
    """K is drawn, K outputs, the best kept: the same law as `exact_delta` integrates."""
    runs, rng = RunCount(8.0, 0.5), np.random.default_rng(0)
    best = []
    for u in rng.random(20_000):
        best.append(rng.standard_normal(runs.draw(float(u))).max())
    slope = generating(runs)
    grid = np.linspace(-8, 8, 4001)
    density = stats.norm.pdf(grid) * slope(stats.norm.cdf(grid))
    law = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    assert law[-1] == pytest.approx(1.0, abs=1e-6)
    found = stats.kstest(best, lambda y: np.interp(y, grid, law))
    assert found.pvalue > 1e-4


def test_epsilons_of_a_run_beyond_the_profile_are_not_covered():
    """Found by a review: points above 700 had been moved to 700."""
    for cost in (lambda delta: 1462.0, lambda delta: 1.0 if delta >= 1e-5 else math.inf):
        assert profile_epsilon(cost, RunCount(8.0, math.inf), 1e-5) == math.inf
    profile = Profile(lambda delta: 5.0 if delta > 1e-6 else 1e4, 1e-9)
    assert profile.delta(np.array([4.0, 6.0, 900.0, 1e5])).min() > 1e-6


def test_the_number_of_runs_is_random_for_every_mean_that_is_taken():
    with pytest.raises(PrivacyError, match="no distribution"):
        RunCount(501.0, math.inf)
    drawn = [RunCount(500.0, math.inf).draw(u) for u in (1e-9, 0.1, 0.5, 0.9, 1 - 1e-9)]
    assert drawn == [int(stats.poisson(500).ppf(u)) for u in (1e-9, 0.1, 0.5, 0.9, 1 - 1e-9)]
    with pytest.raises(PrivacyError, match="no parameter"):
        RunCount(8.0, 1e10)
