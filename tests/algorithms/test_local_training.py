"""Local training: users one by one in compiled code against all users by tensor operations."""

import numpy as np
import pytest
import torch
from helpers import BOX, CHOICE
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.algorithms.policy_gradient import batched_training as together
from privrl_bench.algorithms.policy_gradient.local_training import (
    LocalOptimizerConfig,
    LocalTrainer,
    PolicyObjective,
    ValueObjective,
    sequential,
)
from privrl_bench.functional.optim import Adam, adam_start
from privrl_bench.kernels import mlp_training as fused
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


def all_at_once(start, data, descent, objective):
    return together.BatchedLocalTrainer(objective, "cpu")(start, data, descent)


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
def test_one_by_one_equals_all_at_once(name, radius, seeded):
    objective = OBJECTIVES[name]
    start, data, order = problem(objective)
    adam = adam_start(start)
    if seeded:
        moment = 0.1 * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))
        adam = Adam(moment, moment**2, 17)
    descent = LocalOptimizerConfig(order, 1e-2, radius, adam)
    got = sequential(start, data, descent, objective)
    expected = all_at_once(start, data, descent, objective)
    assert float(expected.norm(dim=-1).min()) > 0.02
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-5)
    if radius < 1:
        assert torch.allclose(got.norm(dim=-1), torch.tensor(radius), rtol=1e-5)
    else:
        assert not torch.allclose(got[0], got[1])


def test_the_compiled_way_is_taken_in_single_precision_only():
    objective = OBJECTIVES["choice"]
    train = LocalTrainer(objective)
    start, data, order = problem(objective)
    descent = LocalOptimizerConfig(order, 1e-2, 0.5, adam_start(start))
    single = train(start, data, descent)
    assert torch.equal(single, sequential(start, data, descent, objective))
    data = {k: x.double() if x.is_floating_point() else x for k, x in data.items()}
    descent = descent._replace(adam=adam_start(start.double()))
    double = train(start.double(), data, descent)
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-5)


@settings(deadline=None, max_examples=15)
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
    descent = LocalOptimizerConfig(order, 1e-3, 1.0, adam_start(start))
    got, expected = (f(start, data, descent, objective) for f in (sequential, all_at_once))
    # Adam's first steps have the size of lr whatever the gradient, so a sign may flip near zero.
    assert (got - expected).abs().max() <= 2.1e-3 * order.shape[0] * order.shape[2]
    assert (got - expected).abs().median() < 1e-5


def test_a_user_does_not_depend_on_the_others_or_on_threads(monkeypatch):
    objective = OBJECTIVES["choice"]
    start, data, order = problem(objective)
    descent = LocalOptimizerConfig(order, 1e-2, 0.5, adam_start(start))
    everyone = sequential(start, data, descent, objective)
    for chosen in ([3], [4, 1, 0]):
        some = {name: x[chosen] for name, x in data.items()}
        own = LocalOptimizerConfig(order[:, chosen], 1e-2, 0.5, adam_start(start[chosen]))
        alone = sequential(start[chosen], some, own, objective)
        assert torch.equal(alone, everyone[chosen])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(sequential(start, data, descent, objective), everyone)


def test_one_users_infinities_stay_hers():
    objective = OBJECTIVES["choice"]
    start, data, order = problem(objective)
    rest = (LocalOptimizerConfig(order, 1e-2, 0.5, adam_start(start)), objective)
    clean = sequential(start, data, *rest)
    data["advantage"][2, 3] = float("inf")
    dirty = sequential(start, data, *rest)
    assert not torch.isfinite(dirty[2]).all()
    others = [0, 1, 3, 4]
    assert torch.equal(dirty[others], clean[others])


def test_tensors_that_keep_their_place_hold_nothing_of_an_earlier_round():
    """Rounds of other data, shapes and step sizes through one object, as through fresh ones."""
    objective = OBJECTIVES["box"]
    train = together.BatchedLocalTrainer(objective, "cpu")
    for seed, users in ((1, 5), (2, 5), (3, 4), (4, 5)):
        start, data, order = problem(objective, users=users, seed=seed)
        descent = LocalOptimizerConfig(order, 0.01 / seed, 0.1 * seed, adam_start(start))
        kept = train._step
        got = train(start, data, descent)
        assert torch.equal(got, all_at_once(start, data, descent, objective))
        assert (train._step is kept) == (seed == 2)
        for x in (*train._step._data.values(), train._step.params, train._step._m):
            assert not x.any()


def test_a_captured_step_is_replayed(monkeypatch):
    """The road of a GPU, with a graph that runs what it captured."""
    captured = []

    class Graph:
        def replay(self):
            captured.append("replayed")
            self.step._run()

    def capture(step):
        for _ in range(3):
            step._run()  # a capture leaves traces in the tensors
        graph = Graph()
        graph.step = step
        captured.append("captured")
        return graph

    objective = OBJECTIVES["choice"]
    start, data, order = problem(objective)
    descent = LocalOptimizerConfig(order, 1e-2, 0.5, adam_start(start))
    expected = all_at_once(start, data, descent, objective)
    real = together.LocalStep.__init__

    def init(self, *arguments):
        real(self, *arguments)
        self._graph = capture(self)

    monkeypatch.setattr(together.LocalStep, "__init__", init)
    train = together.BatchedLocalTrainer(objective, "cpu")
    for _ in range(2):
        assert torch.equal(train(start, data, descent), expected)
    assert captured == ["captured"] + ["replayed"] * 2 * order.shape[0] * order.shape[2]


def test_tanh():
    x = np.concatenate([np.linspace(-12, 12, 100_001), [np.inf, -np.inf, np.nan]])
    y = x.astype(np.float32)
    fused._tanh(y)
    expected = np.tanh(x.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=0, atol=3e-7)
