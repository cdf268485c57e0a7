"""Linear policy evaluation: known answers on the chain, autograd, sensitivity by brute force."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.packs.offline.ope.policy_evaluation import (
    Steps,
    Visits,
    dp_lsl,
    dp_lsw,
    exact_moments,
    first_visits,
    moments,
    mspbe,
    primal_dual_terms,
    solve,
    visits_within,
    wis_lstd,
)

GAMMA = 0.99


def chain_moments(states=40, horizon=2_000, stay=0.5):
    """Of a chain whose last state is terminal and has no feature."""
    move = torch.zeros(states, states, dtype=torch.float64)
    for s in range(states - 1):
        move[s, s] = stay
        if s < states - 2:
            move[s, s + 1] = 1 - stay
    pay = torch.zeros(states, dtype=torch.float64)
    pay[-2] = 1 - stay
    start = torch.full((states,), 1.0, dtype=torch.float64)
    start[-1] = 0.0
    phi = torch.eye(states, dtype=torch.float64)
    return exact_moments(visits_within(move, start, horizon), move, pay, phi, GAMMA)


def test_known_answers_of_the_chain():
    exact = chain_moments()
    d = exact.C.diagonal()
    assert d[0].item() == pytest.approx(1 / 780)
    assert d[38].item() == pytest.approx(0.05)
    assert mspbe(torch.zeros(40), exact).item() == pytest.approx(0.0125, rel=1e-9)
    value = solve(exact.A, exact.b)
    assert value[0].item() == pytest.approx(0.463024336)
    assert value[38].item() == pytest.approx(0.990099010)
    assert value[39].item() == pytest.approx(0.0, abs=1e-12)
    assert value[:39].mean().item() == pytest.approx(0.694366548)
    assert mspbe(value, exact).item() == pytest.approx(0.0, abs=1e-20)


def some_steps(lead=(2, 3), length=7, d=4, seed=0):
    g = torch.Generator().manual_seed(seed)

    def normal(*more):
        return torch.randn(*lead, length, *more, generator=g, dtype=torch.float64)

    done = torch.rand(*lead, length, generator=g) < 0.2
    happened = torch.arange(length) < torch.randint(2, length + 1, lead, generator=g)[..., None]
    weights = happened / happened.sum(-1, keepdim=True).double()
    after = torch.where((done & happened)[..., None], 0.0, normal(d))
    return Steps(normal(d), after, normal(), normal().exp(), weights, done)


def test_the_gradient_is_that_of_the_saddle_point():
    steps = some_steps()
    g = torch.Generator().manual_seed(1)
    theta = torch.randn(2, 1, 4, generator=g, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 1, 4, generator=g, dtype=torch.float64, requires_grad=True)
    one = moments(steps, GAMMA)
    rest = one.b - (one.A @ theta.unsqueeze(-1)).squeeze(-1)
    half = 0.5 * (w.unsqueeze(-2) @ one.C @ w.unsqueeze(-1)).squeeze((-1, -2))
    saddle = (w * rest).sum(-1) - half
    found = primal_dual_terms(steps, GAMMA, theta[:, :, None], w[:, :, None]).sum(-2)
    up, down = torch.autograd.grad(saddle.sum(), (theta, w))
    torch.testing.assert_close(found[..., :4].sum(1, keepdim=True), up)
    torch.testing.assert_close(found[..., 4:].sum(1, keepdim=True), -down)


def test_wis_lstd_is_lstd_with_traces_on_policy():
    steps = some_steps(lead=(), length=9, seed=3)
    steps = steps._replace(rho=torch.ones(9, dtype=torch.float64))
    a, b = wis_lstd(steps, GAMMA, 0.7)
    z = torch.zeros(4, dtype=torch.float64)
    a2, b2 = torch.zeros(4, 4, dtype=torch.float64), z.clone()
    for t in range(9):
        if steps.weights[t] == 0:
            continue
        z = GAMMA * 0.7 * z + steps.phi[t]
        a2 += torch.outer(z, steps.phi[t] - GAMMA * steps.after[t])
        b2 += steps.rewards[t] * z
        if steps.done[t]:
            z = torch.zeros_like(z)
    torch.testing.assert_close((a, b), (a2, b2))


def test_wis_lstd_without_traces_is_lstd_with_ratios():
    steps = some_steps(seed=4)
    plain = moments(steps._replace(weights=(steps.weights > 0).double()), GAMMA)
    torch.testing.assert_close(wis_lstd(steps, GAMMA, 0.0), (plain.A, plain.b))


def test_wis_lstd_by_hand():
    """Two steps of one feature, ratios 2 and 3: the recursion written out."""
    one = torch.ones(2, 1, dtype=torch.float64)
    steps = Steps(
        one,
        torch.tensor([[1.0], [0.0]], dtype=torch.float64),
        torch.tensor([5.0, 7.0], dtype=torch.float64),
        torch.tensor([2.0, 3.0], dtype=torch.float64),
        one[:, 0],
        torch.tensor([False, True]),
    )
    a, b = wis_lstd(steps, 0.5, 0.5)
    # z1 = 2; b = 10; A = 2 (1 - 0.5) = 1; u = 0.25 * (5 * 2) = 2.5; V = 0.25 * (2 * 0) = 0
    # z2 = 3 (0.25 * 2 + 1) = 4.5; b += 7 * 4.5 + 2 * 2.5; A += 4.5 + 2 * 0
    assert b.item() == pytest.approx(10 + 31.5 + 5)
    assert a.item() == pytest.approx(1 + 4.5)


@settings(max_examples=50)
@given(length=st.integers(1, 30), padding=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_padding_does_not_change_the_visits_of_a_user(length, padding, seed):
    """DP-LSW and DP-LSL drop common padding: the returns of a user must not depend on the lengths of other
    users' episodes, not even in rounding."""
    draw = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, 5, (3, length + padding), generator=draw)
    rewards = torch.randn(3, length + padding, generator=draw)
    own = torch.randint(1, length + 1, (3, 1), generator=draw)
    mask = torch.arange(length + padding) < own
    done = torch.rand(3, length + padding, generator=draw) < 0.1
    whole = first_visits(cells, rewards, done, mask, 0.99, 5)
    cut = first_visits(*(x[:, :length] for x in (cells, rewards, done, mask)), 0.99, 5)
    assert torch.equal(whole[0], cut[0])
    assert torch.equal(whole[1], cut[1])


def test_first_visits_by_hand():
    cells = torch.tensor([[0, 1, 0, 2], [2, 2, 0, 0]])
    rewards = torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 9.0, 9.0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    done = torch.tensor([[False, False, False, True], [False, True, False, False]])
    found, seen = first_visits(cells, rewards, done, mask, 0.5, 4)
    assert found.tolist() == [[1 + 1 + 1 + 1, 2 + 2 + 2, 8, 0], [0, 0, 1.5, 0]]
    assert seen.tolist() == [[True, True, True, False], [False, False, True, False]]


# --- sensitivity, by brute force

WIDTH = 2.0  # returns in [-1, 1]
# A user: for each of two states None (not visited) or the return.
USERS = list(itertools.product((None, -1.0, 1.0), repeat=2))
PHI = torch.tensor([[1.0, 0.3], [-0.4, 1.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 0.5], dtype=torch.float64)


def summed(users):
    total = torch.tensor([[p[s] or 0.0 for s in range(2)] for p in users]).double().sum(0)
    visits = torch.tensor([[float(p[s] is not None) for s in range(2)] for p in users]).sum(0)
    return Visits(total, visits.double())


def lsw(users, beta):
    return dp_lsw(summed(users), PHI, WEIGHTS, beta, WIDTH)


def lsl(users, beta):
    return dp_lsl(summed(users), PHI, WEIGHTS, 4.0, len(users), beta, WIDTH)


def worst(answer, users, beta):
    """(local sensitivity, largest ratio of bounds) over all replacements of one user."""
    here = answer(users, beta)
    moved, ratio = 0.0, 1.0
    for place, other in itertools.product(range(len(users)), USERS):
        there = answer([*users[:place], other, *users[place + 1 :]], beta)
        moved = max(moved, float((here.theta - there.theta).norm()))
        ratio = max(ratio, float(here.bound / there.bound), float(there.bound / here.bound))
    return moved, ratio, float(here.bound)


@pytest.mark.parametrize("answer", [lsw, lsl])
@settings(max_examples=12)
@given(st.lists(st.sampled_from(USERS), min_size=1, max_size=4), st.sampled_from([0.05, 0.5]))
def test_the_bound_is_smooth_and_above_the_local_sensitivity(answer, users, beta):
    moved, ratio, bound = worst(answer, users, beta)
    assert moved <= bound * (1 + 1e-12)
    assert ratio <= math.exp(beta) * (1 + 1e-12)


def test_the_bound_of_dp_lsw_is_reached_by_one_state():
    """One state, one user: replacing -1 by 1 changes the result by the full width."""
    one = torch.ones(1, 1, dtype=torch.float64)
    seen = Visits(torch.tensor([-1.0]).double(), torch.tensor([1.0]).double())
    found = dp_lsw(seen, one, torch.ones(1), 0.1, WIDTH)
    assert float(found.bound) == pytest.approx(WIDTH)


def test_the_factor_two_of_dp_lsl_is_needed():
    """Without it the replacement of one user exceeds the bound for a large ridge."""
    phi, rho = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    ends = [
        dp_lsl(Visits(torch.tensor([x]).double(), torch.ones(1).double()), phi, rho, 1e3, 1, 0.1, WIDTH)
        for x in (-1.0, 1.0)
    ]  # fmt: skip
    moved = float((ends[0].theta - ends[1].theta).norm())
    assert 0.9 * float(ends[0].bound) < moved <= float(ends[0].bound)


def test_a_ridge_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="ridge must exceed"):
        dp_lsl(summed([(1.0, None)]), PHI, WEIGHTS, 0.5, 1, 0.1, WIDTH)
