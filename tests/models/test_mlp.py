"""Networks on flat vectors against torch's modules; the public features against their kernel."""

import pytest
import torch
from helpers import module_of, vector_of

from privrl_bench.models.features import FourierFeatures
from privrl_bench.models.mlp import Mlp
from privrl_bench.types import generator


@pytest.mark.parametrize("hidden", [(7,), (6, 5), (4, 4, 4)])
def test_many_networks_at_once_equal_torch_modules(hidden) -> None:
    net = Mlp(3, hidden, 2)
    g = torch.Generator().manual_seed(0)
    params = torch.randn(4, net.size, generator=g)
    x = torch.randn(4, 9, 3, generator=g)
    out = net.forward(params, x)
    for n in range(4):
        module = module_of(params[n], [3, *hidden, 2])
        torch.testing.assert_close(out[n], module(x[n]).detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(vector_of(module), params[n])


def test_gradients_do_not_cross_between_networks() -> None:
    net = Mlp(3, (5,), 2)
    params = torch.randn(2, net.size, requires_grad=True)
    net.forward(params, torch.randn(2, 4, 3))[0].sum().backward()
    assert params.grad[0].any()
    assert not params.grad[1].any()


def test_initial_weights_are_orthogonal_with_the_wanted_gains() -> None:
    net = Mlp(4, (8, 8), 2)
    start = net.init(generator(1), last_gain=0.01)
    assert torch.equal(start, net.init(generator(1), last_gain=0.01))
    assert not torch.equal(start, net.init(generator(2), last_gain=0.01))
    layers = [x for x in module_of(start, [4, 8, 8, 2]) if isinstance(x, torch.nn.Linear)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, 0.01), strict=True):
        weight = layer.weight.detach()
        short = weight if weight.shape[0] <= weight.shape[1] else weight.T
        square = short @ short.T
        torch.testing.assert_close(square, gain**2 * torch.eye(len(square)), atol=1e-6, rtol=1e-5)
        assert not layer.bias.any()


def test_fourier_features_approximate_a_gaussian_kernel() -> None:
    features = FourierFeatures(3, 20_000, 0.7, generator(5))
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    phi = features(x)
    assert phi.shape == (6, features.size) == (6, 20_001)
    assert torch.equal(phi[:, -1], torch.ones(6))
    kernel = torch.exp(-0.5 * 0.7**2 * torch.cdist(x, x) ** 2)
    torch.testing.assert_close(phi[:, :-1] @ phi[:, :-1].T, kernel, atol=0.04, rtol=0)


def test_fourier_features_depend_on_their_public_stream_only() -> None:
    x = torch.randn(2, 3)
    first = FourierFeatures(3, 8, 1.0, generator(5))(x)
    torch.manual_seed(99)
    assert torch.equal(first, FourierFeatures(3, 8, 1.0, generator(5))(x))
    assert not torch.equal(first, FourierFeatures(3, 8, 1.0, generator(6))(x))
