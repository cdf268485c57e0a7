"""Local training: compiled and sequential against batched tensor operations."""

import pytest
import torch
from helpers import BOX, CHOICE
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.algorithms.policy_gradient.user_training import (
    PolicyObjective,
    UserOptimizerConfig,
    UserTrainer,
    ValueObjective,
    batched,
    sequential,
)
from privrl_bench.functional.optim import Adam, adam_start
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import make_policy

OBJECTIVES = {
    "choice": PolicyObjective(make_policy(CHOICE, [7, 5]), None, 0.1, False),
    "choice, clipped ratio": PolicyObjective(make_policy(CHOICE, [6]), 0.05, 0.1, False),
    "choice, normalised": PolicyObjective(make_policy(CHOICE, [6]), None, 0.0, True),
    "box": PolicyObjective(make_policy(BOX, [7, 5]), None, 0.1, False),
    "box, clipped ratio": PolicyObjective(make_policy(BOX, [4, 3, 5]), 0.05, 0.0, True),
    "value": ValueObjective(Mlp(3, (7, 5), 1)),
}


def problem(objective, users=5, steps=12, minibatches=3, epochs=2, seed=0):
    """(start, data, order) of random users."""
    g = torch.Generator().manual_seed(seed)
    policy = getattr(objective, "policy", None)
    size = objective.net.size if policy is None else policy.size
    start = 0.5 * torch.randn(users, size, generator=g)
    data = {"obs": torch.randn(users, steps, 3, generator=g)}
    if policy is None:
        data["target"] = torch.randn(users, steps, generator=g)
    else:
        noise = policy.draw(g, users, steps)
        data["action"] = policy.sampler(start)(data["obs"], noise)
        old, _ = policy.log_prob(start, data["obs"], data["action"])
        data["old"] = old + 0.05 * torch.randn(old.shape, generator=g)
        data["advantage"] = torch.randn(users, steps, generator=g)
    order = torch.rand(epochs, users, steps, generator=g).argsort(-1)
    return start, data, order.reshape(epochs, users, minibatches, steps // minibatches)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("radius", [0.03, 100.0])
@pytest.mark.parametrize("seeded", [False, True])
def test_sequential_equals_batched(name, radius, seeded):
    objective = OBJECTIVES[name]
    start, data, order = problem(objective)
    adam = adam_start(start)
    if seeded:
        moment = 0.1 * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))
        adam = Adam(moment, moment**2, 17)
    optimizer = UserOptimizerConfig(order, 1e-2, radius, adam)
    got = sequential(start, data, optimizer, objective)
    expected = batched(start, data, optimizer, objective)
    assert float(expected.norm(dim=-1).min()) > 0.02
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-5)
    if radius < 1:
        assert torch.allclose(got.norm(dim=-1), torch.tensor(radius), rtol=1e-5)
    else:
        assert not torch.allclose(got[0], got[1])


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("radius", [0.03, float("inf")])
def test_compiled_gradient_descent_equals_batched(name, radius):
    objective = OBJECTIVES[name]
    start, data, order = problem(objective)
    optimizer = UserOptimizerConfig(order, 0.1, radius, adam_start(start), plain=True)
    got = sequential(start, data, optimizer, objective)
    expected = batched(start, data, optimizer, objective)
    assert float(expected.norm(dim=-1).min()) > 0.02
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-5)
    assert (got.norm(dim=-1) <= radius * (1 + 1e-5)).all()


def test_training_is_compiled_in_single_precision_only():
    objective = OBJECTIVES["choice"]
    train = UserTrainer(objective)
    start, data, order = problem(objective)
    optimizer = UserOptimizerConfig(order, 1e-2, 0.5, adam_start(start))
    single = train(start, data, optimizer)
    assert torch.equal(single, sequential(start, data, optimizer, objective))
    data = {k: x.double() if x.is_floating_point() else x for k, x in data.items()}
    optimizer = optimizer._replace(adam=adam_start(start.double()))
    double = train(start.double(), data, optimizer)
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-5)


@settings(max_examples=15)
@given(
    users=st.integers(1, 6),
    steps=st.integers(1, 9),
    minibatches=st.integers(1, 3),
    hidden=st.lists(st.integers(1, 9), min_size=0, max_size=3),
    seed=st.integers(0, 99),
)
def test_any_shape(users, steps, minibatches, hidden, seed):
    objective = PolicyObjective(make_policy(BOX, hidden), None, 0.1, False)
    start, data, order = problem(objective, users, steps * minibatches, minibatches, 1, seed)
    optimizer = UserOptimizerConfig(order, 1e-3, 1.0, adam_start(start))
    got, expected = (f(start, data, optimizer, objective) for f in (sequential, batched))
    # Adam's first steps have the size of lr whatever the gradient, so a sign may flip near zero.
    assert (got - expected).abs().max() <= 2.1e-3 * order.shape[0] * order.shape[2]
    assert (got - expected).abs().median() < 1e-5


def test_a_user_does_not_depend_on_the_others_or_on_threads(monkeypatch):
    objective = OBJECTIVES["choice"]
    start, data, order = problem(objective)
    optimizer = UserOptimizerConfig(order, 1e-2, 0.5, adam_start(start))
    everyone = sequential(start, data, optimizer, objective)
    for chosen in ([3], [4, 1, 0]):
        some = {name: x[chosen] for name, x in data.items()}
        own = UserOptimizerConfig(order[:, chosen], 1e-2, 0.5, adam_start(start[chosen]))
        alone = sequential(start[chosen], some, own, objective)
        assert torch.equal(alone, everyone[chosen])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(sequential(start, data, optimizer, objective), everyone)


def test_an_infinite_advantage_affects_its_user_only():
    objective = OBJECTIVES["choice"]
    start, data, order = problem(objective)
    rest = (UserOptimizerConfig(order, 1e-2, 0.5, adam_start(start)), objective)
    clean = sequential(start, data, *rest)
    data["advantage"][2, 3] = float("inf")
    dirty = sequential(start, data, *rest)
    assert not torch.isfinite(dirty[2]).all()
    others = [0, 1, 3, 4]
    assert torch.equal(dirty[others], clean[others])
