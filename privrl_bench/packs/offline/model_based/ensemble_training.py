"""Local training of ensembles in compiled code, one model of one user after the other.

Equal to `model_based.user_ensemble.train_batched` up to rounding (tested). Single precision on the CPU,
swish networks. The result of a user does not depend, to the last bit, on the other users. See
`mlp_training` for the reason to train one after the other.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import jit, part
from privrl_bench.kernels.mlp_kernel import (
    SWISH,
    adam,
    backward,
    forward,
    load_minibatch,
    sum_gradient,
)

MOST, LEAST = 0.5, -10.0  # soft bounds of the log variance of standardised targets
_LEAST, _MOST = np.float32(LEAST), np.float32(MOST)


@part
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return np.float32(1) / (np.float32(1) + np.exp(-x))


@part
def _likelihood(y, target, dy):  # type: ignore[no-untyped-def]
    """Derivative of `Ensemble.loss` by the outputs.

    Args:
        y: [B, 2 K] means and unbounded log variances.
        target: [B, K].
        dy: [B, 2 K], filled.
    """
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
    """One step of gradient descent, then the projection of each part of the vector, in place.

    Args:
        params: [P], updated.
        start: [P] centres of the balls.
        grad: [P] gradient without the penalty.
        step: step size.
        shrink: L2 penalty.
        ends: end of each separately projected part.
        radius: L2 bound of each part's displacement.
    """
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
    start, replica, table, order, widths, ends, radius, lr, decay, use_adam, result
):
    """Train every user's copies of the M models, each part inside a ball around its start.

    Args:
        start: [R, M, P] initial parameters of each replica.
        replica: [N] replica of each user.
        table: [N, T, I + K] inputs, then targets.
        order: [E, N, minibatches, B] indices into T.
        widths: widths of the network's layers, from I to 2 K.
        ends: end of each separately clipped part of a model.
        radius: L2 bound of each part's displacement, enforced after every step.
        lr: step size.
        decay: L2 penalty of all parameters.
        use_adam: Adam with new moments for every model; otherwise gradient descent.
        result: [N, M, P], filled with the displacements.
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
            count = 0
            for epoch in range(epochs):
                for piece in range(minibatches):
                    load_minibatch(table[user], order[epoch, user, piece], x, rest)
                    forward(params, widths, layers, gates, rows, SWISH)
                    _likelihood(y, rest, dy)
                    backward(params, widths, layers, gates, slopes, rows, SWISH)
                    sum_gradient(widths, layers, slopes, rows, grad)
                    count += 1
                    if use_adam:
                        for i in range(size):
                            grad[i] += shrink * params[i]
                        adam(params, begin, grad, m, v, count, lr, np.inf)
                        _descend(params, begin, grad, zero, zero, ends, radius)
                    else:
                        _descend(params, begin, grad, step, shrink, ends, radius)
            for i in range(size):
                result[user, member, i] = params[i] - begin[i]
