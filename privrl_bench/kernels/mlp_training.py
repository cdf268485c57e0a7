"""Local training of policies and critics in compiled code, one user after the other.

Equal to `user_training.batched` up to rounding (tested). The batched form reads and writes the
parameters and moments of all users in each operation. Here the training of one user is finished before
the next begins, so that its arrays stay in the cache. The result of a user does not depend, to the last
bit, on the other users or on the number of threads.

Single precision on the CPU, tanh networks.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import jit, part
from privrl_bench.kernels.mlp_kernel import (
    TANH,
    adam,
    backward,
    descend,
    forward,
    load_minibatch,
    parameter_count,
    sum_gradient,
)
from privrl_bench.kernels.policy_heads import (
    CATEGORICAL,
    GAUSSIAN,
    categorical,
    gaussian,
    standardize,
)


@part
def _squared(y, dy, rest):  # type: ignore[no-untyped-def]
    """Derivative of a quarter of the mean squared error, the weight used in the authors' code."""
    rows = y.shape[0]
    for i in range(rows):
        dy[i, 0] = np.float32(0.5) * (y[i, 0] - rest[i, 0]) / np.float32(rows)


@jit
def train_users(  # type: ignore[no-untyped-def]
    start, moment, square, table, order, widths, head, step, lr, radius, plain, result
):
    """Train every user's copy of the parameters, inside a ball around the start.

    Args:
        start: [N, P] initial parameters, the network's first.
        moment: [N, P] Adam's first moments after `step` steps.
        square: [N, P] Adam's second moments.
        table: [N, T, D + K] observations, then the columns of the loss.
        order: [E, N, M, B] indices into T, M minibatches of B steps in each of E epochs.
        widths: widths of the network's layers, from D to the outputs.
        head: (kind, ratio_clip, entropy_coef, normalize) of `policy_heads.Head`.
        step: steps that the moments count.
        lr: step size.
        radius: L2 bound of the displacement, enforced after every step.
        plain: gradient descent instead of Adam.
        result: [N, P], filled with the displacements.
    """
    kind, clip, entropy, normalize = head
    clip, entropy = np.float32(clip), np.float32(entropy)
    epochs, users, minibatches, rows = order.shape
    inputs, outputs = widths[0], widths[-1]
    columns = table.shape[2] - inputs
    total = rows * widths.sum()
    layers = np.empty(total, np.float32)
    slopes = np.empty(total, np.float32)
    rest = np.empty((rows, columns), np.float32)
    grad = np.empty(start.shape[1], np.float32)
    net = parameter_count(widths)
    x = layers[: rows * inputs].reshape(rows, inputs)
    y = layers[total - rows * outputs :].reshape(rows, outputs)
    dy = slopes[total - rows * outputs :].reshape(rows, outputs)
    for user in range(users):
        params, m, v = start[user].copy(), moment[user].copy(), square[user].copy()
        count = step
        for epoch in range(epochs):
            for piece in range(minibatches):
                load_minibatch(table[user], order[epoch, user, piece], x, rest)
                if normalize:
                    standardize(rest[:, columns - 1])
                forward(params, widths, layers, layers, rows, TANH)
                if kind == CATEGORICAL:
                    categorical(y, dy, rest, clip, entropy)
                elif kind == GAUSSIAN:
                    gaussian(y, dy, rest, params[net:], grad[net:], clip, entropy)
                else:
                    _squared(y, dy, rest)
                backward(params, widths, layers, layers, slopes, rows, TANH)
                sum_gradient(widths, layers, slopes, rows, grad)
                count += 1
                if plain:
                    for i in range(grad.size):
                        grad[i] *= np.float32(lr)
                    descend(params, start[user], grad, radius)
                else:
                    adam(params, start[user], grad, m, v, count, lr, radius)
        for i in range(params.size):
            result[user, i] = params[i] - start[user, i]
