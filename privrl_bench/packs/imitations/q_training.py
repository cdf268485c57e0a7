"""Updates of DQN with a replay memory in compiled code, all updates of a round for one replica.

Equal to the tensor operations of `value.q_learning` up to rounding (tested). Single precision on the CPU,
ReLU networks.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import jit, part
from privrl_bench.kernels.mlp_kernel import RELU, backward, forward, sum_gradient


@part
def _square(x):  # type: ignore[no-untyped-def]
    """Squared L2 norm of x."""
    total = np.float32(0)
    for j in range(x.size):
        total += x[j] * x[j]
    return total


@part
def _clip(widths, layers, slopes, rows, bound):  # type: ignore[no-untyped-def]
    """Scale every sample's slopes in place so that its gradient has an L2 norm of at most `bound`.

    The gradient is never formed.
    """
    for i in range(rows):
        square, left = np.float32(0), 0
        for k in range(widths.size - 1):
            fan_in, fan_out = widths[k], widths[k + 1]
            right = left + rows * fan_in
            x = layers[left + i * fan_in : left + (i + 1) * fan_in]
            d = slopes[right + i * fan_out : right + (i + 1) * fan_out]
            square += (np.float32(1) + _square(x)) * _square(d)
            left = right
        norm = np.sqrt(square)
        if norm > bound:
            scale, left = np.float32(bound) / norm, 0
            for k in range(widths.size - 1):
                left += rows * widths[k]
                d = slopes[left + i * widths[k + 1] : left + (i + 1) * widths[k + 1]]
                for j in range(d.size):
                    d[j] *= scale


@part
def _descend(params, target, grad, m, v, peak, step, lr, decay, tau):  # type: ignore[no-untyped-def]
    """One step of AdamW with AMSGrad, then the update of the target network, in place.

    Args:
        params: [P] parameters of Q.
        target: [P] parameters of the target network.
        grad: [P] gradient.
        m: [P] first moments.
        v: [P] second moments.
        peak: [P] largest second moments so far.
        step: number of this step, from 1.
        lr: step size.
        decay: weight decay.
        tau: weight of Q in the target's update.
    """
    f = np.float32
    first, second = f(0.1), f(0.001)
    size = f(lr / (1.0 - 0.9**step))
    correct = f(1.0 / (1.0 - 0.999**step))
    keep, share = f(1.0 - lr * decay), f(tau)
    for i in range(params.size):
        g = grad[i]
        m[i] += first * (g - m[i])
        v[i] += second * (g * g - v[i])
        peak[i] = max(peak[i], v[i])
        p = keep * params[i] - size * m[i] / (np.sqrt(peak[i] * correct) + f(1e-8))
        params[i] = p
        target[i] += share * (p - target[i])


@jit
def learn(  # type: ignore[no-untyped-def]
    params, target, m, v, peak, updates, memory, rows, noise, widths, rates, bound, std
):
    """Perform n updates of one replica in place.

    Args:
        params: [P] parameters of Q.
        target: [P] parameters of the target network.
        m: [P] first moments.
        v: [P] second moments.
        peak: [P] largest second moments so far.
        updates: earlier updates.
        memory: (obs [K, D], action [K], reward [K], next_obs [K, D], discount [K]).
        rows: [n, B] indices into the memory, one minibatch per update.
        noise: [n, P] standard normal draws, or [0, P] for no noise.
        widths: widths of the layers.
        rates: (step size, weight decay, weight of Q in the target's update).
        bound: L2 bound of the gradient of one transition; infinite for none.
        std: standard deviation of the noise added to the mean gradient.
    """
    obs, action, reward, after, discount = memory
    count, size = rows.shape
    total = size * widths.sum()
    # The target's layers share the memory of the slopes, so that everything fits in the cache.
    layers, slopes = np.empty(total, np.float32), np.zeros(total, np.float32)
    inputs, choices = widths[0], widths[-1]
    x = layers[: size * inputs].reshape(size, inputs)
    next_x = slopes[: size * inputs].reshape(size, inputs)
    q = layers[total - size * choices :].reshape(size, choices)
    dq = slopes[total - size * choices :].reshape(size, choices)
    grad = np.empty(params.size, np.float32)
    one, share = np.float32(1), np.float32(1.0 / size)
    lr, decay, tau = rates
    for t in range(count):
        for i in range(size):
            k = rows[t, i]
            for j in range(inputs):
                x[i, j] = obs[k, j]
                next_x[i, j] = after[k, j]
        forward(params, widths, layers, layers, size, RELU)
        forward(target, widths, slopes, slopes, size, RELU)
        for i in range(size):
            k = rows[t, i]
            best = dq[i, 0]
            for j in range(choices):
                best = max(best, dq[i, j])
                dq[i, j] = 0
            a = int(action[k])
            error = q[i, a] - (reward[k] + discount[k] * best)
            dq[i, a] = min(max(error, -one), one)
        backward(params, widths, layers, layers, slopes, size, RELU)
        if bound < np.inf:
            _clip(widths, layers, slopes, size, bound)
        sum_gradient(widths, layers, slopes, size, grad)
        for i in range(grad.size):
            grad[i] *= share
        if noise.shape[0]:
            for i in range(grad.size):
                grad[i] += std * noise[t, i]
        _descend(params, target, grad, m, v, peak, updates + t + 1, lr, decay, tau)
