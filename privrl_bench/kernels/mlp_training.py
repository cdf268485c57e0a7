"""`local.train_in_ball` in compiled code: one user after the other, her numbers in the cache throughout.

A batch of users through one operation after another moves every user's parameters and moments to
memory and back between operations; here a user is trained to the end before the next one begins. What comes
out for one user does not depend, to the last bit, on who else is trained or on how many threads.

Single precision on the CPU. tanh is the quotient of polynomials that Eigen uses (error below 3e-7).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from privrl_bench.kernels.jit import jit, part

CATEGORICAL, GAUSSIAN, SQUARED = 0, 1, 2


class Head(NamedTuple):
    """What follows the network: the loss of one user's minibatch.

    `kind` CATEGORICAL or GAUSSIAN is the policy loss of `nets.policy`, with columns (choice or A actions,
    old log probability, advantage); SQUARED is a quarter of the mean squared error, with one column, the
    target. `ratio_clip` is infinite for none.
    """

    kind: int
    ratio_clip: float = math.inf
    entropy_coef: float = 0.0
    normalize: bool = False  # the advantages of each minibatch


@part
def _tanh(x):  # type: ignore[no-untyped-def]
    """In place. Coefficients: Eigen, GenericPacketMathFunctions."""
    f = np.float32
    for i in range(x.size):
        v = x[i]
        v = f(7.90531110763549805) if v > f(7.90531110763549805) else v
        v = f(-7.90531110763549805) if v < f(-7.90531110763549805) else v
        s = v * v
        p = f(-2.76076847742355e-16) * s + f(2.00018790482477e-13)
        p = p * s + f(-8.60467152213735e-11)
        p = p * s + f(5.12229709037114e-08)
        p = p * s + f(1.48572235717979e-05)
        p = p * s + f(6.37261928875436e-04)
        p = (p * s + f(4.89352455891786e-03)) * v
        q = f(1.19825839466702e-06) * s + f(1.18534705686654e-04)
        q = (q * s + f(2.26843463243900e-03)) * s + f(4.89352518554385e-03)
        x[i] = p / q


@part
def _forward(params, widths, layers, rows):  # type: ignore[no-untyped-def]
    """Fill the layers after the first; `layers` holds one [rows, width] after the other."""
    at, left = 0, 0
    for k in range(widths.size - 1):
        fan_in, fan_out = widths[k], widths[k + 1]
        weight = params[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        bias = params[at : at + fan_out]
        at += fan_out
        right = left + rows * fan_in
        x = layers[left:right].reshape(rows, fan_in)
        y = layers[right : right + rows * fan_out].reshape(rows, fan_out)
        np.dot(x, weight, y)
        for i in range(rows):
            for j in range(fan_out):
                y[i, j] += bias[j]
        if k < widths.size - 2:
            _tanh(layers[right : right + rows * fan_out])
        left = right


@part
def _backward(params, widths, layers, rows, grad, slopes):  # type: ignore[no-untyped-def]
    """From the outputs' slopes (the last piece of `slopes`, laid out as `layers`) to `grad` [P]."""
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
            dx = slopes[left:right].reshape(rows, fan_in)
            np.dot(dy, weight.T, dx)
            for i in range(rows):
                for j in range(fan_in):
                    dx[i, j] *= np.float32(1) - x[i, j] * x[i, j]
        right = left


@part
def _slope(log_prob, old, advantage, ratio_clip, rows):  # type: ignore[no-untyped-def]
    """Derivative of the mean policy loss with respect to one log probability (`Surrogate.slope`)."""
    ratio = np.exp(log_prob - old)
    if (advantage > 0 and ratio > 1 + ratio_clip) or (advantage < 0 and ratio < 1 - ratio_clip):
        return np.float32(0)
    return -ratio * advantage / np.float32(rows)


@part
def _categorical(y, dy, rest, ratio_clip, entropy_coef):  # type: ignore[no-untyped-def]
    """`CategoricalPolicy.surrogate_gradient` at the logits y [B, A]; y becomes log probabilities."""
    rows, choices = y.shape
    for i in range(rows):
        top = y[i, 0]
        for j in range(1, choices):
            top = max(top, y[i, j])
        total = np.float32(0)
        for j in range(choices):
            total += np.exp(y[i, j] - top)
        shift = top + np.log(total)
        entropy = np.float32(0)
        for j in range(choices):
            y[i, j] -= shift
            dy[i, j] = np.exp(y[i, j])
            entropy -= dy[i, j] * y[i, j]
        chosen = int(rest[i, 0])
        slope = _slope(y[i, chosen], rest[i, 1], rest[i, 2], ratio_clip, rows)
        weight = entropy_coef / np.float32(rows)
        for j in range(choices):
            dy[i, j] *= weight * (y[i, j] + entropy) - slope
        dy[i, chosen] += slope


@part
def _gaussian(y, dy, rest, log_std, d_log_std, ratio_clip, entropy_coef):  # type: ignore[no-untyped-def]
    """`GaussianPolicy.surrogate_gradient` at the means y [B, A] and the log deviations [A]."""
    rows, width = y.shape
    inverse = np.exp(-log_std)
    constant = np.float32(0)
    for j in range(width):
        constant += log_std[j] + np.float32(0.9189385332046727)  # log(2 pi) / 2
        d_log_std[j] = -entropy_coef
    for i in range(rows):
        squares = np.float32(0)
        for j in range(width):
            dy[i, j] = (rest[i, j] - y[i, j]) * inverse[j]
            squares += dy[i, j] * dy[i, j]
        log_prob = np.float32(-0.5) * squares - constant
        slope = _slope(log_prob, rest[i, width], rest[i, width + 1], ratio_clip, rows)
        for j in range(width):
            d_log_std[j] += slope * (dy[i, j] * dy[i, j] - np.float32(1))
            dy[i, j] *= slope * inverse[j]


@part
def _squared(y, dy, rest):  # type: ignore[no-untyped-def]
    """Half the derivative of `losses.value_loss`, the weight that the authors' code gives it."""
    rows = y.shape[0]
    for i in range(rows):
        dy[i, 0] = np.float32(0.5) * (y[i, 0] - rest[i, 0]) / np.float32(rows)


@part
def _standardize(x):  # type: ignore[no-untyped-def]
    """In place, as `returns.normalize` over a whole minibatch."""
    mean = np.float32(0)
    for i in range(x.size):
        mean += x[i]
    mean /= np.float32(x.size)
    squares = np.float32(0)
    for i in range(x.size):
        x[i] -= mean
        squares += x[i] * x[i]
    scale = np.sqrt(squares / np.float32(max(x.size - 1, 1))) + np.float32(1e-8)
    for i in range(x.size):
        x[i] /= scale


@part
def _adam(params, start, grad, m, v, step, lr, radius):  # type: ignore[no-untyped-def]
    """`optim.adam_step` and `optim.project` of one user, in place; `grad` is used up."""
    f = np.float32
    size = f(lr / (1.0 - 0.9**step))
    unbias = f(1.0 / (1.0 - 0.999**step))
    # Two loops: one with all five arrays would not be vectorised.
    for i in range(params.size):
        g = grad[i]
        m[i] += (g - m[i]) * f(0.1)
        v[i] = f(0.999) * v[i] + f(0.001) * g * g
        grad[i] = size * m[i] / (np.sqrt(v[i] * unbias) + f(1e-5))
    square = f(0)
    for i in range(params.size):
        grad[i] = params[i] - grad[i] - start[i]
        square += grad[i] * grad[i]
    norm = np.sqrt(square)
    scale = f(radius) / norm if norm > radius else f(1)
    for i in range(params.size):
        params[i] = start[i] + grad[i] * scale


@jit
def train_users(  # type: ignore[no-untyped-def]
    start, moment, square, table, order, widths, head, step, lr, radius, result
):
    """Fill `result` [N, P] with the users' displacements.

    Args:
        start: [N, P]; moment, square: [N, P] of Adam after `step` steps.
        table: [N, T, D + K] observations, then the columns of the head.
        order: [E, N, M, B] indices into T.
        widths: of the network's layers, from D on.
        head: (kind, ratio_clip, entropy_coef, normalize) of `Head`.
        lr, radius: as in `train_in_ball`.
    """
    kind, clip, entropy, standardize = head
    clip, entropy = np.float32(clip), np.float32(entropy)
    epochs, users, minibatches, rows = order.shape
    inputs, outputs = widths[0], widths[-1]
    columns = table.shape[2] - inputs
    total = rows * widths.sum()
    layers = np.empty(total, np.float32)
    slopes = np.empty(total, np.float32)
    rest = np.empty((rows, columns), np.float32)
    grad = np.empty(start.shape[1], np.float32)
    net = 0
    for k in range(widths.size - 1):
        net += (widths[k] + 1) * widths[k + 1]
    x = layers[: rows * inputs].reshape(rows, inputs)
    y = layers[total - rows * outputs :].reshape(rows, outputs)
    dy = slopes[total - rows * outputs :].reshape(rows, outputs)
    for user in range(users):
        params, m, v = start[user].copy(), moment[user].copy(), square[user].copy()
        done = step
        for epoch in range(epochs):
            for piece in range(minibatches):
                for i in range(rows):
                    t = order[epoch, user, piece, i]
                    for j in range(inputs):
                        x[i, j] = table[user, t, j]
                    for j in range(columns):
                        rest[i, j] = table[user, t, inputs + j]
                if standardize:
                    _standardize(rest[:, columns - 1])
                _forward(params, widths, layers, rows)
                if kind == 0:
                    _categorical(y, dy, rest, clip, entropy)
                elif kind == 1:
                    _gaussian(y, dy, rest, params[net:], grad[net:], clip, entropy)
                else:
                    _squared(y, dy, rest)
                _backward(params, widths, layers, rows, grad, slopes)
                done += 1
                _adam(params, start[user], grad, m, v, done, lr, radius)
        for i in range(params.size):
            result[user, i] = params[i] - start[user, i]
