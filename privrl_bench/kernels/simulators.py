"""Simulators in compiled code: one step of one environment."""

from __future__ import annotations

import numpy as np

from privrl_bench.kernels.jit import exact_part


@exact_part
def cartpole(state, n, action, constants):  # type: ignore[no-untyped-def]
    """Advance CartPole by one step, as `envs.classic.CartPoleSlots.advance`.

    Args:
        state: [4, count] states of all environments in double precision; column n is updated.
        n: index of the environment.
        action: 0 or 1.
        constants: physical constants, of `envs.classic.CartPoleSlots.inside`.

    Returns:
        Whether the episode has terminated.
    """
    most, length, pole, total, moment, gravity, tau, far, steep = constants
    angle, rate = state[2, n], state[3, n]
    force = most if action == 1 else -most
    cos, sin = np.cos(angle), np.sin(angle)
    inertia = length * (4.0 / 3.0 - pole * (cos * cos) / total)
    push = (force + moment * (rate * rate) * sin) / total
    turn = (gravity * sin - cos * push) / inertia
    state[0, n] += tau * state[1, n]
    state[1, n] += tau * (push - moment * turn * cos / total)
    state[2, n] += tau * rate
    state[3, n] += tau * turn
    return abs(state[0, n]) > far or abs(state[2, n]) > steep
