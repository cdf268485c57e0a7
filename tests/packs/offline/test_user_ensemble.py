"""Local training of an ensemble: compiled, batched and a plain loop, and the clip bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.models.mlp import Mlp
from privrl_bench.packs.offline.model_based.ensemble import Ensemble, Units
from privrl_bench.packs.offline.model_based.model_based_settings import PrimorlConfig
from privrl_bench.packs.offline.model_based.user_ensemble import (
    clipped,
    clipping,
    train,
    train_batched,
)


def small(members=3, obs=3, actions=1, hidden=(8, 7)):
    units = Units(torch.linspace(-0.1, 0.1, obs + 1), torch.linspace(0.5, 1.5, obs + 1))
    net = Mlp(obs + actions, hidden, 2 * (obs + 1), "swish")
    return Ensemble(members, net, units)


def problem(ensemble, users=4, steps=40, batch=5, epochs=2, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    start = torch.stack([ensemble.init(g), ensemble.init(g)]).to(dtype)
    replica = torch.arange(users) % 2
    data = (
        torch.randn(users, steps, ensemble.net.inputs, generator=g, dtype=dtype),
        torch.randn(users, steps, ensemble.targets, generator=g, dtype=dtype),
    )
    order = torch.stack(
        [
            torch.stack([torch.randperm(steps, generator=g) for _ in range(users)])
            for _ in range(epochs)
        ]
    ).reshape(epochs, users, steps // batch, batch)
    return start, replica, data, order


def settings_of(lr, decay, adam):
    kind = "adam" if adam else "sgd"
    return PrimorlConfig(model_lr=lr, model_decay=decay, model_optimizer=kind)


def by_hand(ensemble, start, replica, data, order, config, kind, bound):
    """Each member on each trajectory in turn, with torch's modules and optimisers."""
    rows = []
    for user, r in enumerate(replica.tolist()):
        parts = []
        for begin in start[r].reshape(ensemble.members, -1):
            leaf = begin.clone().requires_grad_()
            make = torch.optim.Adam if config.model_optimizer == "adam" else torch.optim.SGD
            more = {"eps": 1e-5} if config.model_optimizer == "adam" else {}
            optimizer = make([leaf], lr=config.model_lr, **more)
            for batch in order[:, user].flatten(0, 1):
                x, y = data[0][user, batch], data[1][user, batch]
                at, h = 0, x
                for k, (a, b) in enumerate(ensemble.net.shapes):
                    h = h @ leaf[at : at + a * b].reshape(a, b)
                    h = h + leaf[at + a * b : at + (a + 1) * b]
                    at += (a + 1) * b
                    if k < len(ensemble.net.shapes) - 1:
                        h = h * torch.sigmoid(h)
                mean, free = h.chunk(2, -1)
                log_var = 0.5 - torch.nn.functional.softplus(0.5 - free)
                log_var = -10 + torch.nn.functional.softplus(log_var + 10)
                loss = ((mean - y) ** 2 / log_var.exp() + log_var).mean()
                loss = loss + 0.5 * config.model_decay * (leaf**2).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    moved = leaf - begin
                    sizes = [len(moved)]
                    if kind == "layer":
                        sizes = [(a + 1) * b for a, b in ensemble.net.shapes]
                    radius = bound / (ensemble.members * len(sizes)) ** 0.5
                    pieces = [
                        p * min(1.0, radius / max(float(p.norm()), 1e-30))
                        for p in moved.split(sizes)
                    ]
                    leaf.copy_(begin + torch.cat(pieces))
            parts.append((leaf - begin).detach())
        rows.append(torch.cat(parts))
    return torch.stack(rows)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("kind", ["flat", "layer"])
@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize("bound", [0.02, 100.0])
def test_tensors_equal_the_loop(kind, adam, bound) -> None:
    ensemble = small()
    start, replica, data, order = problem(ensemble, dtype=torch.float64)
    config = settings_of(3e-3, 1e-3, adam)
    clip = clipping(ensemble, kind, bound)
    found = train_batched(ensemble, start, replica, data, order, config, clip)
    expected = by_hand(ensemble, start, replica, data, order, config, kind, bound)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["flat", "layer"])
@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize("bound", [0.05, 100.0])
def test_compiled_equals_tensors(kind, adam, bound) -> None:
    ensemble = small()
    start, replica, data, order = problem(ensemble)
    config, clip = settings_of(3e-3, 1e-3, adam), clipping(ensemble, kind, bound)
    found = train(ensemble, start, replica, data, order, config, clip)
    double = tuple(x.double() for x in data)
    expected = train_batched(ensemble, start.double(), replica, double, order, config, clip)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-5)


def test_threads_and_neighbours_change_nothing() -> None:
    ensemble = small()
    start, replica, data, order = problem(ensemble)
    config, clip = settings_of(3e-3, 0.0, True), clipping(ensemble, "flat", 0.1)
    together = train(ensemble, start, replica, data, order, config, clip)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        spread = train(ensemble, start, replica, data, order, config, clip)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, spread)
    lone = train(
        ensemble,
        start,
        replica[1:2],
        (data[0][1:2], data[1][1:2]),
        order[:, 1:2],
        config,
        clip,
    )
    assert torch.equal(lone[0], together[1])


@given(
    kind=st.sampled_from(["flat", "layer"]),
    bound=st.floats(1e-3, 10.0),
    scale=st.floats(1e-3, 1e3),
    members=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_a_row_is_never_longer_than_the_bound(kind, bound, scale, members, seed) -> None:
    """Sensitivity by brute force: for any displacement of a user, the norm of the row is at most C."""
    ensemble = small(members)
    g = torch.Generator().manual_seed(seed)
    wild = scale * torch.randn(5, members, ensemble.net.size, generator=g, dtype=torch.float64)
    clip = clipping(ensemble, kind, bound)
    rows = clipped(wild.flatten(0, 1), clip).reshape(5, -1)
    assert float(rows.norm(dim=-1).max()) <= bound * (1 + 1e-9)
    # The bound is met when every part is long, so noise is not larger than it must be.
    long = clipped(1e6 * wild.flatten(0, 1) / scale, clip).reshape(5, -1)
    np.testing.assert_allclose(long.norm(dim=-1).numpy(), bound, rtol=1e-6)


def test_table_4_parameters() -> None:
    """facts: 18,956 (CartPole), 5,000 (Pendulum), 132,636 (HalfCheetah) parameters in a model."""
    for inputs, hidden, outputs, size in (
        (6, (128, 128), 6, 18_956),
        (4, (64, 64), 4, 5_000),
        (23, (200,) * 4, 18, 132_636),
    ):
        assert Mlp(inputs, hidden, 2 * outputs, "swish").size == size


def test_log_variances_are_bounded_and_loss_is_the_likelihood() -> None:
    ensemble = small()
    outputs = torch.linspace(-50, 50, 16).reshape(1, 2, 8).double()
    mean, log_var = ensemble.heads(outputs)
    assert log_var.min() >= -10
    assert log_var.max() <= 0.5 + 1e-4
    y = torch.zeros_like(mean)
    normal = torch.distributions.Normal(mean, (0.5 * log_var).exp())
    expected = (-2 * normal.log_prob(y) - np.log(2 * np.pi)).mean()
    assert float(ensemble.loss(outputs, y)) == pytest.approx(float(expected))
