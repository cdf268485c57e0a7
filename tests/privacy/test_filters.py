"""Privacy filters: known answers, cut cohorts against enumeration, an adversary who chooses and stops."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting import exact_gaussian
from privrl_bench.privacy.accounting.filters import SLACK, PrivacyFilter, at_order, best_order
from privrl_bench.privacy.accounting.releases import ReleaseEvent


def gaussian(z, adjacency="zero_out", **more):
    return ReleaseEvent("gaussian", z, adjacency, **{"sampling": "fixed", **more})


def poisson(z, q, adjacency="zero_out", **more):
    return gaussian(z, adjacency, q=q, sampling="poisson", **more)


# --- known answers


@pytest.mark.parametrize(
    ("sigma", "delta"),
    [(0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-5), (4.0, 1e-5), (1.0, 1e-6), (2.0, 1e-6)],
)
def test_the_gaussian_filter_has_room_for_one_gaussian_of_its_epsilon(sigma, delta):
    """Epsilon of noise sigma: Balle and Wang 2018, as dp-accounting has it; 4.377178 at 1 and 1e-5."""
    epsilon = get_epsilon_gaussian(sigma, delta) + SLACK
    room = PrivacyFilter("gaussian", epsilon, delta, "zero_out").capacity
    assert room == pytest.approx(sigma**-2, rel=1e-4)
    assert room < sigma**-2  # what delta leaves for discrete noise
    if (sigma, delta) == (1.0, 1e-5):
        assert epsilon == pytest.approx(4.377178 + SLACK)


@pytest.mark.parametrize(
    ("z", "count", "adjacency", "mu2"),
    [(2.0, 1, "zero_out", 0.25), (2.0, 8, "zero_out", 2.0), (2.0, 1, "replace_one", 1.0)],
)
def test_gaussians_cost_mu_squared_and_their_divergence(z, count, adjacency, mu2):
    """Dong, Roth and Su 2022: mu^2 adds up. Mironov 2017: D_a = a mu^2 / 2."""
    release = {gaussian(z, adjacency): count}
    assert PrivacyFilter("gaussian", 1, 1e-5, adjacency).cost(release) == pytest.approx(mu2)
    renyi = PrivacyFilter("renyi", 8, 1e-5, adjacency, 6.0)
    assert renyi.cost(release) == pytest.approx(6.0 * mu2 / 2)


@pytest.mark.parametrize("order", [2.0, 3.0, 8.0, 32.0])
def test_the_epsilon_of_a_divergence_is_that_of_the_papers_formula(order):
    """Canonne, Kamath and Steinke 2020, proposition 12, as dp-accounting has it."""
    found, _ = compute_epsilon([order], [0.7], 1e-5)
    assert at_order(0.7, order, 1e-5) == pytest.approx(found)
    room = PrivacyFilter("renyi", found + SLACK, 1e-5, "zero_out", order).capacity
    assert room == pytest.approx(0.7, rel=1e-3)
    assert room < 0.7


@pytest.mark.parametrize(("z", "q", "order"), [(1.0, 0.01, 3), (0.7, 0.1, 4), (2.0, 0.3, 8)])
def test_sampled_gaussians_cost_the_sum_of_the_paper(z, q, order):
    """Mironov, Talwar and Zhang 2019, section 3.3, for integer orders."""
    terms = [
        math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.exp((k * k - k) / (2 * z * z))
        for k in range(order + 1)
    ]
    cost = PrivacyFilter("renyi", 50, 1e-5, "zero_out", float(order)).cost({poisson(z, q): 5})
    assert cost == pytest.approx(5 * math.log(sum(terms)) / (order - 1), rel=1e-6)


def test_how_many_releases_fit():
    one = PrivacyFilter("gaussian", 1.0, 1e-5, "zero_out")
    cost = one.cost({gaussian(10.0): 1})
    most = int(one.capacity / cost)
    z = 10.0 / math.sqrt(most)  # all of them as one Gaussian mechanism
    assert exact_gaussian.epsilon_at(z, 1e-5) <= 1.0
    assert exact_gaussian.epsilon_at(10.0 / math.sqrt(most + 1), 1e-5) > 0.98
    assert one.fits((most - 1) * cost, cost)
    assert not one.fits(most * cost, cost)


def test_of_the_renyi_filters_the_chosen_order_has_nearly_the_most_room():
    best = best_order(4.0, 1e-6)
    rooms = {
        a: PrivacyFilter("renyi", 4.0, 1e-6, "zero_out", a).capacity / a
        for a in (5.5, 6.0, 7.0, 9.0)
    }
    assert best == 6.0
    assert rooms[best] >= 0.95 * max(rooms.values())


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ({gaussian(1.0, "replace_one"): 1}, "is for zero_out, the run has replace_one"),
        (
            {ReleaseEvent("smooth", 1.0, "zero_out", epsilon=1.0, delta=1e-6, sampling="fixed"): 1},
            "no",
        ),
        ({ReleaseEvent("label", 1.0, "zero_out", sampling="fixed"): 1}, "no"),
    ],
)
@pytest.mark.parametrize("kind", ["gaussian", "renyi"])
def test_what_has_no_bound_or_another_adjacency_is_refused(kind, release, words):
    with pytest.raises(PrivacyError, match=words):
        PrivacyFilter(kind, 4.0, 1e-6, "zero_out", 6.0).cost(release)


def test_sampled_cohorts_have_no_bound_in_the_gaussian_filter_and_no_noise_none_in_either():
    with pytest.raises(PrivacyError, match="a renyi filter may have one"):
        PrivacyFilter("gaussian", 4.0, 1e-6, "zero_out").cost({poisson(1.0, 0.1): 1})
    for kind in ("gaussian", "renyi"):
        assert PrivacyFilter(kind, 4.0, 1e-6, "zero_out", 6.0).cost({gaussian(0.0): 1}) == math.inf
        assert PrivacyFilter(kind, 4.0, 1e-6, "zero_out", 6.0).cost(Counter()) == 0.0


def test_an_order_that_leaves_nothing_is_refused():
    with pytest.raises(PrivacyError, match=r"order 2 leaves nothing of epsilon 1"):
        _ = PrivacyFilter("renyi", 1.0, 1e-6, "zero_out", 2.0).capacity


# --- cohorts that are cut at a cap


def density(weights, x, z):
    """Density at x of sum + z N(0, 1), of {sum: chance}."""
    return sum(
        p * np.exp(-((x - s) ** 2) / (2 * z * z)) / (z * math.sqrt(2 * math.pi))
        for s, p in weights.items()
    )


def sums(others, q, cap, row, user_is_there):
    """Law of the sum of a cohort: `others` rows, one user with `row`, at most `cap` taken at random."""
    found = Counter()
    for drawn in product((False, True), repeat=len(others)):
        there = [y for y, d in zip(others, drawn, strict=True) if d]
        chance = math.prod(q if d else 1 - q for d in drawn)
        cases = [(q, [*there, row]), (1 - q, there)] if user_is_there else [(1.0, there)]
        for p, rows in cases:
            size = min(len(rows), cap)
            # All rows of others are alike, so that only whether the user's is taken matters.
            if user_is_there and p == q and len(rows) > len(there):
                taken = size / len(rows)
                found[row + sum(there[: size - 1])] += chance * p * taken
                if taken < 1:
                    found[sum(there[:size])] += chance * p * (1 - taken)
            else:
                found[sum(rows[:size])] += chance * p
    return found


@pytest.mark.parametrize("adjacency", ["zero_out", "add_or_remove"])
@pytest.mark.parametrize("y", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("z", "order"), [(1.0, 2.5), (2.0, 6.0)])
def test_a_cut_cohort_costs_at_most_the_bound(adjacency, y, z, order):
    others, q, cap = [y] * 4, 0.4, 2
    bound = PrivacyFilter("renyi", 90, 1e-5, adjacency, order).cost(
        {poisson(z, q, adjacency, population=5, cap=cap): 1}
    )
    x = np.linspace(-30, 30, 30001)
    one = density(sums(others, q, cap, 1.0, True), x, z)
    absent = (
        sums(others, q, cap, 0.0, True)
        if adjacency == "zero_out"
        else sums(others, q, cap, 0, False)
    )
    two = density(absent, x, z)
    for p, r in ((one, two), (two, one)):
        logs = order * np.log(p) + (1 - order) * np.log(r)
        integral = np.trapezoid(np.exp(logs), x)
        assert math.log(integral) / (order - 1) <= bound * (1 + 1e-6)


# --- an adversary who chooses noise and stops by what was released


GRID = np.arange(-60.0, 60.0, 0.005)  # of the privacy loss


def step(law, cost):
    """The law of the loss under b = 1 after one more Gaussian release of mu^2 = cost."""
    width = GRID[1] - GRID[0]
    n = int(8 * math.sqrt(cost) / width) + 1
    at = np.arange(-n, n + 1) * width
    kernel = np.exp(-((at - cost / 2) ** 2) / (2 * cost))
    return np.convolve(law, kernel / kernel.sum(), mode="same")


def hockey(law, epsilon):
    """P1(T) - e^epsilon P0(T), at most over T, of a law of the loss under b = 1."""
    return float(
        (law * np.maximum(1 - np.exp(np.minimum(epsilon - GRID, 0)), 0) * (epsilon < GRID)).sum()
    )


def played(capacity, shares, stop_at, bold):
    """Laws of the loss at each stop, with the cost spent: the adversary stops or spends more by what it saw."""
    start = np.zeros(len(GRID))
    start[np.abs(GRID).argmin()] = 1.0
    running, found = {0.0: start}, []
    for share in shares:
        following = {}
        for spent, law in running.items():
            for high in (False, True):  # a different noise after a high loss
                part = np.where((GRID > 0) == high, law, 0.0)
                cost = capacity * share * (bold if high else 1.0)
                if spent + cost > capacity or part.sum() == 0:
                    found.append((spent, part))  # the filter refuses
                    continue
                after, key = step(part, cost), spent + cost
                stops = stop_at(key) < GRID
                found.append((key, np.where(stops, after, 0.0)))
                following[key] = following.get(key, 0.0) + np.where(stops, 0.0, after)
        running = following
    return found + list(running.items())


@settings(max_examples=12, deadline=None)
@given(
    shares=st.lists(st.floats(0.1, 0.6), min_size=1, max_size=4),
    stop_above=st.floats(-1.0, 4.0),
    bold=st.floats(0.2, 2.0),
)
def test_an_adversary_never_passes_the_cap(shares, stop_above, bold):
    one = PrivacyFilter("gaussian", 2.0, 1e-3, "zero_out")
    ends = played(one.capacity, shares, lambda spent: stop_above, bold)
    assert sum(law.sum() for _, law in ends) == pytest.approx(1.0, abs=1e-3)
    assert hockey(sum(law for _, law in ends), 2.0) <= 1e-3 * (1 + 1e-2)


def test_the_sum_that_was_realised_is_no_epsilon():
    """The planted wrong rule: epsilon of what was spent until the adversary stopped."""
    capacity = PrivacyFilter("gaussian", 2.0, 1e-3, "zero_out").capacity

    def claimed(spent):
        return exact_gaussian.epsilon_at(1 / math.sqrt(spent), 1e-3) if spent else 0.0

    ends = played(capacity, [0.02] * 50, claimed, 1.0)
    wrong = sum(hockey(law, claimed(spent)) for spent, law in ends)
    assert wrong > 3e-3  # the delta that it states is 1e-3
    assert hockey(sum(law for _, law in ends), 2.0) <= 1e-3


def test_one_order_is_what_dp_accounting_computes():
    theirs = RdpAccountant([6.0]).compose(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.3)), 7)
    ours = PrivacyFilter("renyi", 50, 1e-5, "add_or_remove", 6.0).cost(
        {poisson(1.3, 0.02, "add_or_remove"): 7}
    )
    assert at_order(ours, 6.0, 1e-5) == pytest.approx(theirs.get_epsilon(1e-5))
