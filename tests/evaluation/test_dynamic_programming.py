"""Dynamic programming against sums over all paths."""

from itertools import product

import numpy as np
import pytest

from privrl_bench.evaluation.tabular import backward, optimal_value, policy_value


def problem(seed, states=3, actions=2):
    g = np.random.default_rng(seed)
    transitions = g.dirichlet(np.ones(states), size=(states, actions))
    return transitions, g.normal(size=(states, actions, states)), g.dirichlet(np.ones(states)), g


def by_paths(transitions, rewards, start, horizon, policy):
    """Expected return of a policy [H, S, A] as a sum over every path."""
    states, actions = rewards.shape[:2]
    total = 0.0
    for path in product(range(states), repeat=horizon + 1):
        for moves in product(range(actions), repeat=horizon):
            chance, gain = start[path[0]], 0.0
            for h, a in enumerate(moves):
                s, n = path[h], path[h + 1]
                chance *= policy[h, s, a] * transitions[s, a, n]
                gain += rewards[s, a, n]
            total += chance * gain
    return total


@pytest.mark.parametrize("seed", range(3))
def test_a_policys_value_is_the_sum_over_paths(seed) -> None:
    *tables, g = problem(seed)
    policies = g.dirichlet(np.ones(2), size=(4, 3, 3))  # four policies over three steps
    found = policy_value(*tables, 3, policies)
    assert found.shape == (4,)
    for value, policy in zip(found, policies, strict=True):
        assert value == pytest.approx(by_paths(*tables, 3, policy), abs=1e-12)


def test_the_best_value_is_that_of_the_best_of_all_policies() -> None:
    *tables, _ = problem(7)
    best = -np.inf
    for choice in product(range(2), repeat=6):
        policy = np.eye(2)[np.array(choice).reshape(2, 3)]
        best = max(best, float(policy_value(*tables, 2, policy)))
    assert optimal_value(*tables, 2) == pytest.approx(best, abs=1e-12)
    assert backward(tables[0], tables[1], 2).shape == (2, 3, 2)
