"""PPO on pooled data in compiled code, one replica after the other.

Equal to the tensor operations of `policy_gradient.ppo` up to rounding (tested). A replica's result does not
depend, to the last bit, on the other replicas.

Single precision on the CPU, tanh networks.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import jit, part
from privrl_bench.kernels.mlp_kernel import (
    TANH,
    adam,
    backward,
    forward,
    load_minibatch,
    parameter_count,
    sum_gradient,
)
from privrl_bench.kernels.policy_heads import CATEGORICAL, categorical, gaussian, standardize


@part
def _value_slope(y, dy, old, target, clip, weight):  # type: ignore[no-untyped-def]
    """Derivative of the weighted value loss by the values y, as of `functional.losses.value_loss`."""
    rows = y.shape[0]
    for i in range(rows):
        error = y[i, 0] - target[i]
        moved = y[i, 0] - old[i]
        limited = old[i] + min(max(moved, -clip), clip) - target[i]
        slope = error
        if limited * limited > error * error:
            slope = limited if abs(moved) <= clip else np.float32(0)
        dy[i, 0] = weight * slope / np.float32(rows)


@part
def _limit(a, b, bound):  # type: ignore[no-untyped-def]
    """Scale two gradients in place so that their joint norm is at most `bound`."""
    square = np.float32(0)
    for i in range(a.size):
        square += a[i] * a[i]
    for i in range(b.size):
        square += b[i] * b[i]
    scale = min(bound / (np.sqrt(square) + np.float32(1e-6)), np.float32(1))
    for i in range(a.size):
        a[i] *= scale
    for i in range(b.size):
        b[i] *= scale


@part
def _policy_gradient(params, widths, work, grad, rest, head):  # type: ignore[no-untyped-def]
    """Fill `grad` with the gradient of the policy loss; `work` (layers, slopes) holds the observations."""
    kind, ratio_clip, entropy, _ = head
    layers, slopes = work
    rows, outputs = rest.shape[0], widths[-1]
    net = parameter_count(widths)
    forward(params, widths, layers, layers, rows, TANH)
    y = layers[layers.size - rows * outputs :].reshape(rows, outputs)
    dy = slopes[layers.size - rows * outputs :].reshape(rows, outputs)
    clip, weight = np.float32(ratio_clip), np.float32(entropy)
    if kind == CATEGORICAL:
        categorical(y, dy, rest, clip, weight)
    else:
        gaussian(y, dy, rest, params[net:], grad[net:], clip, weight)
    backward(params, widths, layers, layers, slopes, rows, TANH)
    sum_gradient(widths, layers, slopes, rows, grad)


@part
def _value_gradient(params, widths, work, grad, rest, value):  # type: ignore[no-untyped-def]
    """Fill `grad` with the gradient of the weighted value loss; see `_policy_gradient`."""
    layers, slopes = work
    rows, columns = rest.shape
    forward(params, widths, layers, layers, rows, TANH)
    y = layers[layers.size - rows :].reshape(rows, 1)
    dy = slopes[layers.size - rows :].reshape(rows, 1)
    old, target = rest[:, columns - 2], rest[:, columns - 1]
    _value_slope(y, dy, old, target, np.float32(value[1]), np.float32(value[0]))
    backward(params, widths, layers, layers, slopes, rows, TANH)
    sum_gradient(widths, layers, slopes, rows, grad)


@part
def _work(widths, rows):  # type: ignore[no-untyped-def]
    """Space for the layers of a minibatch and for their slopes."""
    size = rows * widths.sum()
    return np.empty(size, np.float32), np.empty(size, np.float32)


@jit
def train_pooled(  # type: ignore[no-untyped-def]
    actors, critics, table, order, actor_widths, critic_widths, head, value, bound, step, lr
):
    """Train the actor and the critic of every replica together, in place.

    Args:
        actors: [3, R, P] parameters, the network's first, and Adam's first and second moments.
        critics: [3, R, Q] the same of the critic.
        table: [R, T, D + K] observations, then the action's columns, old log probability, advantage, old
            value and target.
        order: [R, E, M, B] indices into T, M minibatches of B steps in each of E epochs.
        actor_widths: widths of the network's layers, from D to the outputs.
        critic_widths: the same; the last is 1.
        head: (kind, ratio_clip, entropy_coef, normalize) of `policy_heads.Head`.
        value: (weight of the value loss, clip of a value's change; infinite for none).
        bound: L2 bound of the joint gradient.
        step: steps that the moments count.
        lr: step size.
    """
    replicas, epochs, minibatches, rows = order.shape
    inputs = actor_widths[0]
    columns = table.shape[2] - inputs
    work_a, work_c = _work(actor_widths, rows), _work(critic_widths, rows)
    rest = np.empty((rows, columns), np.float32)
    grad_a = np.empty(actors.shape[2], np.float32)
    grad_c = np.empty(critics.shape[2], np.float32)
    x = work_a[0][: rows * inputs]
    for r in range(replicas):
        actor, critic = actors[0, r], critics[0, r]
        start_a, start_c = actor.copy(), critic.copy()
        count = step
        for epoch in range(epochs):
            for piece in range(minibatches):
                load_minibatch(table[r], order[r, epoch, piece], x.reshape(rows, inputs), rest)
                if head[3]:
                    standardize(rest[:, columns - 3])
                policy = rest[:, : columns - 2]
                _policy_gradient(actor, actor_widths, work_a, grad_a, policy, head)
                for i in range(x.size):  # an assignment of arrays would call a function of Numba's
                    work_c[0][i] = x[i]
                _value_gradient(critic, critic_widths, work_c, grad_c, rest, value)
                _limit(grad_a, grad_c, np.float32(bound))
                count += 1
                adam(actor, start_a, grad_a, actors[1, r], actors[2, r], count, lr, np.inf)
                adam(critic, start_c, grad_c, critics[1, r], critics[2, r], count, lr, np.inf)
