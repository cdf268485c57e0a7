"""Optimiser steps against torch's own."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.functional.optim import adam_start, adam_step, limit_norm, project, rmsprop_step
from privrl_bench.kernels.mlp_kernel import adam

LR = 0.03


def gradients(steps):
    g = torch.Generator().manual_seed(1)
    scale = 10.0 ** torch.randint(-4, 3, (1, 6), generator=g)
    return scale * torch.randn(steps, 3, 6, generator=g, dtype=torch.float64)


def test_adam_equals_torch_over_twenty_steps_with_changing_step_size() -> None:
    fast = start = torch.randn(3, 6, dtype=torch.float64)
    slow = torch.nn.Parameter(start.clone())
    theirs = torch.optim.Adam([slow], lr=LR, eps=1e-5)
    state = adam_start(fast)
    for k, grad in enumerate(gradients(20)):
        theirs.param_groups[0]["lr"] = lr = LR / (1 + k)
        slow.grad = grad
        theirs.step()
        fast, state = adam_step(fast, grad, state, lr)
        torch.testing.assert_close(fast, slow.detach(), rtol=1e-10, atol=1e-12)
    assert state.step == 20


def test_amsgrad_with_decay_equals_torch() -> None:
    fast = torch.randn(3, 6, dtype=torch.float64)
    slow = torch.nn.Parameter(fast.clone())
    theirs = torch.optim.AdamW([slow], lr=LR, weight_decay=0.05, amsgrad=True)
    state = adam_start(fast)._replace(peak=torch.zeros_like(fast))
    for k, grad in enumerate(gradients(20)):
        slow.grad = grad / (1 + k)  # the largest second moments come first
        theirs.step()
        fast, state = adam_step(fast, slow.grad, state, LR, eps=1e-8, decay=0.05)
        torch.testing.assert_close(fast, slow.detach(), rtol=1e-10, atol=1e-12)
    assert not torch.equal(state.v, state.peak)


@pytest.mark.parametrize("radius", [0.05, float("inf")])
def test_the_compiled_adam_is_the_same_up_to_rounding(radius) -> None:
    start = torch.randn(6, generator=torch.Generator().manual_seed(0))
    params, state = start, adam_start(start)
    compiled, m, v = start.numpy().copy(), np.zeros(6, np.float32), np.zeros(6, np.float32)
    for k, grad in enumerate(gradients(20)[:, 0].float()):
        params, state = adam_step(params, grad, state, LR)
        params = start + project(params - start, radius)
        adam(compiled, start.numpy(), grad.numpy().copy(), m, v, k + 1, LR, radius)
        torch.testing.assert_close(torch.from_numpy(compiled), params, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.from_numpy(m), state.m)
    torch.testing.assert_close(torch.from_numpy(v), state.v)


def test_adam_does_not_modify_its_arguments() -> None:
    params, grad = torch.ones(4), torch.ones(4)
    state = adam_start(params)
    adam_step(params, grad, state, LR)
    assert torch.equal(params, torch.ones(4))
    assert not state.m.any()
    assert not state.v.any()


def test_rmsprop_equals_torch_over_twenty_steps() -> None:
    fast = torch.randn(3, 6, dtype=torch.float64)
    slow = torch.nn.Parameter(fast.clone())
    theirs = torch.optim.RMSprop([slow], lr=LR, alpha=0.99, eps=1e-5)
    square = torch.zeros_like(fast)
    for grad in gradients(20):
        slow.grad = grad
        theirs.step()
        fast, square = rmsprop_step(fast, grad, square, LR)
        torch.testing.assert_close(fast, slow.detach(), rtol=1e-10, atol=1e-12)


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8),
    st.floats(1e-3, 1e3),
)
def test_projection_stays_in_the_ball_and_moves_nothing_inside(numbers, radius) -> None:
    x = torch.tensor([numbers, [0.0] * len(numbers)])
    y = project(x, radius)
    assert float(torch.linalg.vector_norm(y[0].double())) <= radius * (1 + 1e-6)
    assert not y[1].any()
    norm = float(torch.linalg.vector_norm(x[0].double()))
    if norm < radius * (1 - 1e-6):
        assert torch.equal(x, y)
    elif norm > 0:
        torch.testing.assert_close(y[0], x[0] * (radius / norm), rtol=1e-4, atol=1e-6 * radius)


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_joint_norm_limit_equals_torch(size) -> None:
    grads = [size * torch.randn(5), size * torch.randn(7)]
    theirs = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for p, g in zip(theirs, grads, strict=True):
        p.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    # Another replica with large gradients must have no effect.
    both = [torch.stack([g, torch.full_like(g, 1e6)]) for g in grads]
    for mine, p in zip(limit_norm(both, 0.5), theirs, strict=True):
        torch.testing.assert_close(mine[0], p.grad)
