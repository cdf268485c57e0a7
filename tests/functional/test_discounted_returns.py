"""Returns and advantages against their definitions."""

import numpy as np
import pytest
import torch
from helpers import slow_gae
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.functional.discounted_returns import gae, normalize, standardize

seeds = st.integers(0, 2**32 - 1)


def trajectory(seed, steps, users=2):
    g = np.random.default_rng(seed)
    rewards, values, after = torch.from_numpy(g.normal(size=(3, users, steps)))
    done = torch.from_numpy(g.random((users, steps)) < 0.3)
    terminated = done & torch.from_numpy(g.random((users, steps)) < 0.5)
    return rewards, values, after, terminated, done


@settings(max_examples=40)
@given(seeds, st.integers(1, 12), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_gae_equals_the_sum_over_all_later_steps(seed, steps, gamma, lam) -> None:
    numbers = trajectory(seed, steps)
    fast = gae(*numbers, gamma, lam)
    for u in range(2):
        slow = slow_gae(*(x[u] for x in numbers), gamma, lam)
        torch.testing.assert_close(fast[u], slow, rtol=1e-10, atol=1e-10)


def test_a_time_limit_bootstraps_and_a_termination_does_not() -> None:
    one, ten = torch.ones(2, 1), torch.full((2, 1), 10.0)
    terminated = torch.tensor([[True], [False]])
    found = gae(one, torch.zeros(2, 1), ten, terminated, torch.ones(2, 1, dtype=bool), 0.5, 0.9)
    assert found.flatten().tolist() == [1.0, 6.0]


def test_lambda_one_without_a_critic_is_the_reward_to_go() -> None:
    rewards, _, _, _, done = trajectory(3, 30)
    zeros = torch.zeros_like(rewards)
    fast = gae(rewards, zeros, zeros, done, done, 0.9, 1.0)
    for u in range(2):
        total = 0.0
        for t in reversed(range(30)):
            total = float(rewards[u, t]) + (0.0 if done[u, t] else 0.9 * total)
            assert float(fast[u, t]) == pytest.approx(total, abs=1e-12)


@settings(max_examples=30)
@given(seeds, st.integers(2, 20), st.data())
def test_normalised_numbers_have_mean_zero_and_deviation_one_over_own_steps(
    seed, steps, data
) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).normal(3.0, 5.0, (2, steps)))
    own = data.draw(st.integers(2, steps))
    mask = torch.ones(2, steps, dtype=torch.bool)
    mask[0, own:] = False
    found = normalize(x, mask)
    expected = (x[0, :own] - x[0, :own].mean()) / x[0, :own].std()
    torch.testing.assert_close(found[0, :own], expected, rtol=1e-6, atol=1e-6)
    assert not found[0, own:].any()
    other = x.clone()
    other[0, own:] = 1e6
    other[1] = -7.0
    assert torch.equal(normalize(other, mask)[0], found[0])


def test_one_step_or_equal_numbers_normalise_to_zero() -> None:
    mask = torch.tensor([[True, False, False]])
    assert normalize(torch.tensor([[4.0, 9.0, 9.0]]), mask).tolist() == [[0.0, 0.0, 0.0]]
    assert not normalize(torch.full((1, 5), 3.0), torch.ones(1, 5, dtype=torch.bool)).any()
    assert not normalize(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool)).any()


@settings(max_examples=30)
@given(seeds, st.integers(2, 20), st.data())
def test_standardised_numbers_are_those_over_own_steps(seed, steps, data) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).normal(3.0, 5.0, (2, steps)))
    own = data.draw(st.integers(2, steps))
    mask = torch.ones(2, steps, dtype=torch.bool)
    mask[0, own:] = False
    found = standardize(x, mask)
    for row, n in ((0, own), (1, steps)):
        theirs = x[row, :n]
        torch.testing.assert_close(found[row, :n], (theirs - theirs.mean()) / theirs.std())
    assert not found[0, own:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_number_or_equal_numbers_are_standardised_to_zero(dtype) -> None:
    x = torch.full((4, 7), 0.3, dtype=dtype)
    x[3] = 1e6
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[0, 1:] = False
    mask[1] = False
    assert not standardize(x, mask).any()
    x[2, 0] = 0.3001  # little, but no rounding
    assert float(standardize(x, mask)[2, 0]) == pytest.approx(2.2678, rel=1e-2)
