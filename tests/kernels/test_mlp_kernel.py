"""The compiled network against automatic differentiation."""

import numpy as np
import pytest
import torch

from privrl_bench.kernels import mlp_kernel
from privrl_bench.models.mlp import Mlp

ACTIVATIONS = {"tanh": mlp_kernel.TANH, "relu": mlp_kernel.RELU, "swish": mlp_kernel.SWISH}


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (5,), (7, 4, 6)], ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_forward_and_gradient(name, hidden, rows):
    net, g = Mlp(3, hidden, 2, name), torch.Generator().manual_seed(0)
    params, x = torch.randn(net.size, generator=g), torch.randn(rows, 3, generator=g)
    d_outputs = torch.randn(rows, 2, generator=g)
    leaf = params.clone().requires_grad_()
    expected = net.forward(leaf[None], x[None])[0]
    (expected_grad,) = torch.autograd.grad((expected * d_outputs).sum(), leaf)

    widths = np.array([3, *hidden, 2])
    layers, gates, slopes = (np.zeros(rows * widths.sum(), np.float32) for _ in range(3))
    layers[: 3 * rows], slopes[-2 * rows :] = x.flatten(), d_outputs.flatten()
    grad = np.empty(net.size, np.float32)
    activation, arrays = ACTIVATIONS[name], (params.numpy(), widths, layers, gates)
    assert mlp_kernel.parameter_count(widths) == net.size
    mlp_kernel.forward(*arrays, rows, activation)
    mlp_kernel.backward(*arrays, slopes, rows, activation)
    mlp_kernel.sum_gradient(widths, layers, slopes, rows, grad)
    found = torch.from_numpy(layers[-2 * rows :]).reshape(rows, 2)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.from_numpy(grad), expected_grad, rtol=1e-5, atol=1e-4)


def test_tanh():
    x = np.concatenate([np.linspace(-12, 12, 100_001), [np.inf, -np.inf, np.nan]])
    y = x.astype(np.float32)
    mlp_kernel.tanh(y)
    expected = np.tanh(x.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize(
    ("inputs", "hidden", "outputs"), [(17, (64, 64), 6), (4, (9,), 2), (3, (), 5)]
)
def test_rows_of_acting_policies_equal_the_network_and_do_not_depend_on_each_other(
    inputs, hidden, outputs
):
    net = Mlp(inputs, hidden, outputs)
    params = torch.stack([net.init(torch.Generator().manual_seed(n), 1.0) for n in range(3)])
    params += 0.1 * torch.randn(params.shape, generator=torch.Generator().manual_seed(5))
    x = 3.0 * torch.randn(3, 33, inputs, generator=torch.Generator().manual_seed(7))
    found = net.by_rows(params)(x)
    torch.testing.assert_close(found, net.forward(params, x), rtol=1e-5, atol=1e-5)
    for n, first, last in ((0, 0, 1), (1, 7, 33), (2, 5, 21)):
        alone = net.by_rows(params[n : n + 1])(x[n : n + 1, first:last])
        assert torch.equal(alone[0], found[n, first:last])
    double = net.by_rows(params.double())(x.double())
    assert torch.equal(double, net.forward(params.double(), x.double()))
    odd = torch.full_like(x, torch.nan)
    assert net.by_rows(params)(odd).isnan().all()
