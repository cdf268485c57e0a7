"""Ridge regressions in compiled code, one user after the other, for the private critic.

Single precision. The result of a user does not depend, to the last bit, on the other users or on the
number of threads. LAPACK guarantees neither, and the LU factorisation in torch 2.13 fails with two threads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from privrl_bench.kernels.jit import jit, part


@part
def _gram(phi, share, ridge, gram):  # type: ignore[no-untyped-def]
    """Fill the lower triangle of gram [F, F] with phi' phi * share + ridge I, given phi [T, F]."""
    steps, size = phi.shape
    gram[:] = 0
    whole = steps - steps % 4
    for t in range(0, whole, 4):
        for i in range(size):
            a, b, c, d = phi[t, i], phi[t + 1, i], phi[t + 2, i], phi[t + 3, i]
            for j in range(i + 1):
                gram[i, j] += (a * phi[t, j] + b * phi[t + 1, j]) + (
                    c * phi[t + 2, j] + d * phi[t + 3, j]
                )
    for t in range(whole, steps):
        for i in range(size):
            for j in range(i + 1):
                gram[i, j] += phi[t, i] * phi[t, j]
    for i in range(size):
        for j in range(i + 1):
            gram[i, j] *= share
        gram[i, i] += ridge


@part
def _factor(gram, least):  # type: ignore[no-untyped-def]
    """Replace the lower triangle of gram [F, F] by its Cholesky factor.

    In exact arithmetic no pivot is below `least`, a lower bound of the eigenvalues. Rounded pivots are
    clamped there. NaN is kept.
    """
    size = gram.shape[0]
    for i in range(size):
        for j in range(i):
            found = np.float32(0)
            for k in range(j):
                found += gram[i, k] * gram[j, k]
            gram[i, j] = (gram[i, j] - found) / gram[j, j]
        found = np.float32(0)
        for k in range(i):
            found += gram[i, k] * gram[i, k]
        pivot = gram[i, i] - found
        gram[i, i] = np.sqrt(least if pivot < least else pivot)


@part
def _substitute(factor, x):  # type: ignore[no-untyped-def]
    """Replace x [F] by the solution of (L L') z = x, where L [F, F] is `factor`."""
    size = x.size
    for i in range(size):
        found = np.float32(0)
        for k in range(i):
            found += factor[i, k] * x[k]
        x[i] = (x[i] - found) / factor[i, i]
    for i in range(size - 1, -1, -1):
        x[i] /= factor[i, i]
        for k in range(i):
            x[k] -= factor[i, k] * x[i]


@jit
def solve_users(phi, target, count, ridge, result):  # type: ignore[no-untyped-def]
    """Solve (phi' phi / n + ridge I) x = phi' target / n for every user.

    Args:
        phi: [N, T, F] features, zero where a user has no step.
        target: [N, T] targets, zero where a user has no step.
        count: [N] numbers of steps n.
        ridge: L2 penalty.
        result: [N, F], filled with the solutions.
    """
    users, steps, size = phi.shape
    gram = np.empty((size, size), np.float32)
    ridge = np.float32(ridge)
    for user in range(users):
        share = np.float32(1) / count[user]
        _gram(phi[user], share, ridge, gram)
        _factor(gram, ridge)
        x = result[user]
        x[:] = 0
        for t in range(steps):
            for j in range(size):
                x[j] += phi[user, t, j] * target[user, t]
        for j in range(size):
            x[j] *= share
        _substitute(gram, x)


def ridge_regressions(phi: Tensor, target: Tensor, count: Tensor, ridge: float) -> Tensor:
    """Solve the regressions of all users.

    Args:
        phi: [N, T, F] features, zero where a user has no step.
        target: [N, T] targets, zero where a user has no step.
        count: [N] numbers of steps.
        ridge: L2 penalty.

    Returns:
        [N, F] solutions of `solve_users`.
    """
    arrays = [x.float().contiguous().numpy() for x in (phi, target, count)]
    users = len(phi)
    result = np.empty((users, phi.shape[-1]), np.float32)
    solve_users(*arrays, ridge, result)
    return torch.from_numpy(result)
