"""Forward and backward pass of a multilayer perceptron, and Adam, for compiled training.

The parts of `mlp_training`, `actor_critic_training` and the kernels of packs, in single precision on the CPU.
The activation is an integer constant of the calling kernel, so that the compiler removes the branches of the
others.

Memory layout: the parameter vector is that of `models.mlp.Mlp`. `layers` holds the input and the output of
every layer as consecutive blocks [rows, width]. `gates` and `slopes` have the same layout.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import jit, part

TANH, RELU, SWISH = 0, 1, 2


@part
def tanh(x):  # type: ignore[no-untyped-def]
    """Replace x by its hyperbolic tangent; the error is below 3e-7.

    Source: the quotient of polynomials in Eigen, GenericPacketMathFunctions.
    """
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
def _activate(y, gate, activation):  # type: ignore[no-untyped-def]
    """Apply tanh or swish to one layer in place; swish stores its sigmoids in `gate`."""
    if activation == TANH:
        tanh(y)
    elif activation == SWISH:
        for i in range(y.size):
            gate[i] = np.float32(0.5) * y[i]
        tanh(gate)
        for i in range(y.size):
            gate[i] = np.float32(0.5) + np.float32(0.5) * gate[i]
            y[i] *= gate[i]


@part
def _differentiate(dy, y, gate, activation):  # type: ignore[no-untyped-def]
    """Multiply dy in place by the activation's derivative, given its values y."""
    if activation == TANH:
        for i in range(dy.size):
            dy[i] *= np.float32(1) - y[i] * y[i]
    elif activation == RELU:
        for i in range(dy.size):
            dy[i] = dy[i] if y[i] > 0 else np.float32(0)
    else:
        for i in range(dy.size):
            dy[i] *= gate[i] + y[i] * (np.float32(1) - gate[i])


@part
def parameter_count(widths):  # type: ignore[no-untyped-def]
    """Length of the parameter vector of a network with layers of these widths."""
    count = 0
    for k in range(widths.size - 1):
        count += (widths[k] + 1) * widths[k + 1]
    return count


@part
def forward(params, widths, layers, gates, rows, activation):  # type: ignore[no-untyped-def]
    """Fill `layers` after the input.

    Args:
        params: [P] parameters; further ones may follow those of the network.
        widths: widths of the layers, from input to output.
        layers: input and layer outputs, see the module.
        gates: sigmoids of the hidden layers for `backward`; read and written by SWISH only.
        rows: samples of the minibatch.
        activation: TANH, RELU or SWISH, of every layer but the last.
    """
    at, left = 0, 0
    for k in range(widths.size - 1):
        fan_in, fan_out = widths[k], widths[k + 1]
        weight = params[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        bias = params[at : at + fan_out]
        at += fan_out
        right = left + rows * fan_in
        end = right + rows * fan_out
        y = layers[right:end].reshape(rows, fan_out)
        np.dot(layers[left:right].reshape(rows, fan_in), weight, y)
        hidden = k < widths.size - 2
        # ReLU is applied in this loop: a second pass over the layer costs 3 % of a Q update.
        for i in range(rows):
            for j in range(fan_out):
                z = y[i, j] + bias[j]
                y[i, j] = max(z, np.float32(0)) if hidden and activation == RELU else z
        if hidden:
            _activate(layers[right:end], gates[right:end], activation)
        left = right


@part
def dense_row(params, at, x, y):  # type: ignore[no-untyped-def]
    """One layer for one sample: y = x W + b, whose parameters begin at `at`; returns where they end."""
    rows, width = x.size, y.size
    for j in range(width):
        y[j] = params[at + rows * width + j]
    left = rows - rows % 4
    for i in range(0, left, 4):  # fewer loads and stores of y
        a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
        start = at + i * width
        w0 = params[start : start + width]
        w1 = params[start + width : start + 2 * width]
        w2 = params[start + 2 * width : start + 3 * width]
        w3 = params[start + 3 * width : start + 4 * width]
        for j in range(width):
            y[j] += (a * w0[j] + b * w1[j]) + (c * w2[j] + d * w3[j])
    for i in range(left, rows):
        a = x[i]
        w0 = params[at + i * width : at + (i + 1) * width]
        for j in range(width):
            y[j] += a * w0[j]
    return at + (rows + 1) * width


@jit
def forward_rows(params, widths, x, y):  # type: ignore[no-untyped-def]
    """Fill y [N, B, out] with the outputs of N tanh networks for x [N, B, in].

    A row's result does not depend, to the last bit, on the other rows.

    Args:
        params: [N, P] parameters.
        widths: as in `forward`.
        x: inputs.
        y: outputs.
    """
    layer, before = np.empty(widths.max(), np.float32), np.empty(widths.max(), np.float32)
    last = widths.size - 2
    for n in range(x.shape[0]):
        for b in range(x.shape[1]):
            at = 0
            before[: widths[0]] = x[n, b]
            for k in range(last + 1):
                z = layer[: widths[k + 1]]
                at = dense_row(params[n], at, before[: widths[k]], z)
                if k < last:
                    tanh(z)
                    before[: widths[k + 1]] = z
            y[n, b] = layer[: widths[last + 1]]


@part
def backward(params, widths, layers, gates, slopes, rows, activation):  # type: ignore[no-untyped-def]
    """Fill the blocks of the hidden layers in `slopes`.

    Args:
        params: as in `forward`.
        widths: as in `forward`.
        layers: filled by `forward`.
        gates: filled by `forward`.
        slopes: derivatives of the loss by the layers before their activation; the block of the outputs is
            given.
        rows: as in `forward`.
        activation: as in `forward`.
    """
    at, right = parameter_count(widths), rows * (widths.sum() - widths[-1])
    for k in range(widths.size - 2, 0, -1):
        fan_in, fan_out = widths[k], widths[k + 1]
        at -= (fan_in + 1) * fan_out
        left = right - rows * fan_in
        weight = params[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        dy = slopes[right : right + rows * fan_out].reshape(rows, fan_out)
        np.dot(dy, weight.T, slopes[left:right].reshape(rows, fan_in))
        _differentiate(slopes[left:right], layers[left:right], gates[left:right], activation)
        right = left


@part
def sum_gradient(widths, layers, slopes, rows, grad):  # type: ignore[no-untyped-def]
    """Fill `grad` [P] with the sum of the samples' gradients, from `layers` and `slopes`."""
    at, left = 0, 0
    for k in range(widths.size - 1):
        fan_in, fan_out = widths[k], widths[k + 1]
        right = left + rows * fan_in
        x = layers[left:right].reshape(rows, fan_in)
        dy = slopes[right : right + rows * fan_out].reshape(rows, fan_out)
        np.dot(x.T, dy, grad[at : at + fan_in * fan_out].reshape(fan_in, fan_out))
        at += fan_in * fan_out
        bias = grad[at : at + fan_out]
        bias[:] = 0
        for i in range(rows):
            for j in range(fan_out):
                bias[j] += dy[i, j]
        at += fan_out
        left = right


@part
def load_minibatch(table, index, x, rest):  # type: ignore[no-untyped-def]
    """Copy rows of a user's table into the network's inputs and the columns of the loss.

    Args:
        table: [T, D + K].
        index: [B] rows of the table.
        x: [B, D], filled with the first D columns.
        rest: [B, K], filled with the others.
    """
    inputs = x.shape[1]
    for i in range(index.size):
        t = index[i]
        for j in range(inputs):
            x[i, j] = table[t, j]
        for j in range(rest.shape[1]):
            rest[i, j] = table[t, inputs + j]


@part
def descend(params, start, step, radius):  # type: ignore[no-untyped-def]
    """Subtract a step, then project onto the L2 ball of `radius` around `start`, in place.

    Args:
        params: [P] parameters, updated.
        start: [P] centre of the ball.
        step: [P]; overwritten.
        radius: infinite for no projection.
    """
    f = np.float32
    square = f(0)
    for i in range(params.size):
        step[i] = params[i] - step[i] - start[i]
        square += step[i] * step[i]
    norm = np.sqrt(square)
    scale = f(radius) / norm if norm > radius else f(1)
    for i in range(params.size):
        params[i] = start[i] + step[i] * scale


@part
def adam(params, start, grad, m, v, step, lr, radius):  # type: ignore[no-untyped-def]
    """One step of Adam, then the projection onto the L2 ball of `radius` around `start`, in place.

    Equal to `functional.optim.adam_step` and `project` up to rounding.

    Args:
        params: [P] parameters, updated.
        start: [P] centre of the ball.
        grad: [P] gradient; overwritten.
        m: [P] first moments, updated.
        v: [P] second moments, updated.
        step: number of this step, from 1.
        lr: step size.
        radius: infinite for no projection.
    """
    f = np.float32
    size = f(lr / (1.0 - 0.9**step))
    unbias = f(1.0 / (1.0 - 0.999**step))
    # Two loops: one with all five arrays would not be vectorised.
    for i in range(params.size):
        g = grad[i]
        m[i] += (g - m[i]) * f(0.1)
        v[i] = f(0.999) * v[i] + f(0.001) * g * g
        grad[i] = size * m[i] / (np.sqrt(v[i] * unbias) + f(1e-5))
    descend(params, start, grad, radius)
