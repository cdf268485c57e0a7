"""`ensemble.train_together` in compiled code: one model of one user after the other, in the cache throughout.

Single precision on the CPU; see `fused.py`. What comes out for one user does not depend on who else is trained.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import jit, part
from privrl_bench.kernels.mlp_training import _adam, _tanh
from privrl_bench.models.ensemble import LEAST, MOST

_LEAST, _MOST = np.float32(LEAST), np.float32(MOST)


@part
def _forward(params, widths, layers, gates, rows):  # type: ignore[no-untyped-def]
    """Fill `layers` after the first, and `gates` with sigmoids of what the hidden ones were before swish."""
    f = np.float32
    at, left = 0, 0
    for k in range(widths.size - 1):
        fan_in, fan_out = widths[k], widths[k + 1]
        weight = params[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        bias = params[at : at + fan_out]
        at += fan_out
        right = left + rows * fan_in
        x = layers[left:right].reshape(rows, fan_in)
        y = layers[right : right + rows * fan_out]
        np.dot(x, weight, y.reshape(rows, fan_out))
        for i in range(rows):
            for j in range(fan_out):
                y[i * fan_out + j] += bias[j]
        if k < widths.size - 2:
            gate = gates[right : right + rows * fan_out]
            for i in range(y.size):
                gate[i] = f(0.5) * y[i]
            _tanh(gate)
            for i in range(y.size):
                gate[i] = f(0.5) + f(0.5) * gate[i]
                y[i] *= gate[i]
        left = right


@part
def _backward(params, widths, layers, gates, slopes, rows, grad):  # type: ignore[no-untyped-def]
    """From the outputs' slopes (the last piece of `slopes`, laid out as `layers`) to `grad` [P]."""
    f = np.float32
    at, right = 0, 0
    for k in range(widths.size - 1):
        at += (widths[k] + 1) * widths[k + 1]
        right += rows * widths[k]
    for k in range(widths.size - 2, -1, -1):
        fan_in, fan_out = widths[k], widths[k + 1]
        at -= (fan_in + 1) * fan_out
        left = right - rows * fan_in
        x = layers[left:right].reshape(rows, fan_in)
        dy = slopes[right : right + rows * fan_out].reshape(rows, fan_out)
        np.dot(x.T, dy, grad[at : at + fan_in * fan_out].reshape(fan_in, fan_out))
        bias = grad[at + fan_in * fan_out : at + (fan_in + 1) * fan_out]
        bias[:] = 0
        for i in range(rows):
            for j in range(fan_out):
                bias[j] += dy[i, j]
        if k > 0:
            weight = params[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
            dx = slopes[left:right]
            np.dot(dy, weight.T, dx.reshape(rows, fan_in))
            y, gate = layers[left:right], gates[left:right]
            for i in range(dx.size):  # swish' = s + y (1 - s)
                dx[i] *= gate[i] + y[i] * (f(1) - gate[i])
        right = left


@part
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return np.float32(1) / (np.float32(1) + np.exp(-x))


@part
def _likelihood(y, target, dy):  # type: ignore[no-untyped-def]
    """Slopes of `Ensemble.loss` at the outputs y [B, 2 K]."""
    f = np.float32
    rows, width = target.shape
    scale = f(1) / f(rows * width)
    for i in range(rows):
        for j in range(width):
            up = _MOST - y[i, width + j]
            below = _MOST - (max(up, f(0)) + np.log1p(np.exp(-abs(up))))
            over = below - _LEAST
            log_var = _LEAST + max(over, f(0)) + np.log1p(np.exp(-abs(over)))
            precision = np.exp(-log_var)
            error = y[i, j] - target[i, j]
            dy[i, j] = f(2) * error * precision * scale
            slope = (f(1) - error * error * precision) * scale
            dy[i, width + j] = slope * _sigmoid(up) * _sigmoid(over)


@part
def _descend(params, start, grad, step, shrink, ends, radius):  # type: ignore[no-untyped-def]
    """A plain step on `grad` and the L2 penalty, then every part, up to each of `ends`, within `radius`."""
    keep = np.float32(1) - step * shrink
    begin = 0
    for end in ends:
        square = np.float32(0)
        for i in range(begin, end):
            p = keep * params[i] - step * grad[i]
            d = p - start[i]
            params[i] = p
            square += d * d
        norm = np.sqrt(square)
        if norm > radius:
            scale = np.float32(radius) / norm
            for i in range(begin, end):
                params[i] = start[i] + (params[i] - start[i]) * scale
        begin = end


@jit
def train_models(  # type: ignore[no-untyped-def]
    start, replica, table, order, widths, ends, radius, lr, decay, adam, result
):
    """Fill `result` [N, M, P] with the displacements of every user's M models.

    Args:
        start: [R, M, P] parameters that all copies start from; replica: [N] which of them is a user's.
        table: [N, T, I + K] inputs, then targets.
        order: [E, N, B_count, B] indices into T.
        widths: of the network's layers, from I to 2 K.
        ends: where the separately clipped parts of a model end; radius: of each part.
        lr, decay: step size, and L2 penalty of all parameters.
        adam: Adam with fresh moments, else plain steps.
    """
    epochs, users, minibatches, rows = order.shape
    inputs, outputs = widths[0], widths[-1]
    targets = outputs // 2
    total = rows * widths.sum()
    layers, gates, slopes = (
        np.empty(total, np.float32),
        np.empty(total, np.float32),
        np.empty(total, np.float32),
    )
    rest = np.empty((rows, targets), np.float32)
    size = start.shape[2]
    grad = np.empty(size, np.float32)
    m, v = np.empty(size, np.float32), np.empty(size, np.float32)
    x = layers[: rows * inputs].reshape(rows, inputs)
    y = layers[total - rows * outputs :].reshape(rows, outputs)
    dy = slopes[total - rows * outputs :].reshape(rows, outputs)
    step, shrink, zero = np.float32(lr), np.float32(decay), np.float32(0)
    for user in range(users):
        for member in range(start.shape[1]):
            begin = start[replica[user], member]
            params = begin.copy()
            m[:] = 0
            v[:] = 0
            done = 0
            for epoch in range(epochs):
                for piece in range(minibatches):
                    for i in range(rows):
                        t = order[epoch, user, piece, i]
                        for j in range(inputs):
                            x[i, j] = table[user, t, j]
                        for j in range(targets):
                            rest[i, j] = table[user, t, inputs + j]
                    _forward(params, widths, layers, gates, rows)
                    _likelihood(y, rest, dy)
                    _backward(params, widths, layers, gates, slopes, rows, grad)
                    done += 1
                    if adam:
                        for i in range(size):
                            grad[i] += shrink * params[i]
                        _adam(params, begin, grad, m, v, done, lr, np.inf)
                        _descend(params, begin, grad, zero, zero, ends, radius)
                    else:
                        _descend(params, begin, grad, step, shrink, ends, radius)
            for i in range(size):
                result[user, member, i] = params[i] - begin[i]
