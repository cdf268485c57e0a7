"""Policy evaluation with linear values v(s) = phi(s).theta from trajectories. T steps, d features.

With the ratios rho_t = pi(a_t | s_t) / pi_b(a_t | s_t), weights c_t of the steps, and phi = 0 after the end,

    A = sum c_t rho_t phi_t (phi_t - gamma phi_{t+1})^T
    b = sum c_t rho_t r_t phi_t,  C = sum c_t phi_t phi_t^T.

theta solves A theta = b (LSTD) and min over theta, max over w of w.(b - A theta) - w.C w / 2 (GTD2).

Source:
    Liu et al. 2015 (saddle point), Xie, Thomas and Miklau 2019 (its private form), Mahmood, van Hasselt and
    Sutton 2014 (WIS-LSTD), Balle, Gomrokchi and Precup 2016 (first visits, DP-LSW, DP-LSL).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Steps(NamedTuple):
    """Trajectories of users as policy evaluation uses them.

    Attributes:
        phi: [..., T, d] features before each step.
        after: [..., T, d] features after it; zeros if the episode terminated.
        rewards: [..., T].
        rho: [..., T] importance ratios.
        weights: [..., T] c_t; zeros for padding.
        done: [..., T] bool, the episode terminated or was truncated.
    """

    phi: Tensor
    after: Tensor
    rewards: Tensor
    rho: Tensor
    weights: Tensor
    done: Tensor


class Moments(NamedTuple):
    """A [..., d, d], b [..., d] and C [..., d, d], see the module's docstring."""

    A: Tensor
    b: Tensor
    C: Tensor


def moments(steps: Steps, gamma: float) -> Moments:
    """Compute A, b and C of every user, summed over T."""
    left = (steps.weights * steps.rho).unsqueeze(-1) * steps.phi
    return Moments(
        left.mT @ (steps.phi - gamma * steps.after),
        (left * steps.rewards.unsqueeze(-1)).sum(-2),
        (steps.weights.unsqueeze(-1) * steps.phi).mT @ steps.phi,
    )


def primal_dual_terms(steps: Steps, gamma: float, theta: Tensor, w: Tensor) -> Tensor:
    """Compute the contribution of every step to (-A^T w, A theta - b + C w).

    The sum over a user's steps is the gradient in theta and the negative gradient in w.

    Args:
        steps: Of every user.
        gamma: Discount.
        theta: [..., T, d], broadcast against the steps.
        w: [..., T, d], broadcast against the steps.

    Returns:
        [..., T, 2 d].

    Source:
        Xie, Thomas and Miklau 2019, equation 4.1.
    """
    change = steps.phi - gamma * steps.after
    ratio = steps.weights * steps.rho
    dual = (steps.phi * w).sum(-1)  # [..., T] phi . w
    error = (change * theta).sum(-1) - steps.rewards
    primal = -(ratio * dual).unsqueeze(-1) * change
    negative = (ratio * error + steps.weights * dual).unsqueeze(-1) * steps.phi
    return torch.cat([primal, negative], dim=-1)


def solve(A: Tensor, b: Tensor) -> Tensor:
    """Return A^+ b [..., d] in double precision: the minimum-norm least-squares solution."""
    return (torch.linalg.pinv(A.double()) @ b.double().unsqueeze(-1)).squeeze(-1)


def mspbe(theta: Tensor, one: Moments) -> Tensor:
    """Compute the mean squared projected Bellman error (b - A theta)^T C^+ (b - A theta).

    Args:
        theta: [..., d].
        one: Of the behaviour distribution, without leading axes.

    Returns:
        [...], in squared units of the value.
    """
    rest = one.b.double() - theta.double() @ one.A.double().mT
    inverse = torch.linalg.pinv(one.C.double(), hermitian=True)
    return ((rest @ inverse) * rest).sum(-1).clamp_min(0.0)


def wis_lstd(steps: Steps, gamma: float, trace: float) -> tuple[Tensor, Tensor]:
    """Compute A and b of WIS-LSTD(lambda) of every user; they are additive over users.

    With on-policy data (rho = 1) this is LSTD(lambda); with trace = 0, LSTD with importance ratios.

    Args:
        steps: Of every user; `weights` matter only as zero or nonzero.
        gamma: Discount. After a terminated step, features are zero and the trace restarts.
        trace: Lambda.

    Returns:
        A [..., d, d] and b [..., d].

    Source:
        Mahmood, van Hasselt and Sutton 2014, as in the authors' code.
    """
    phi, after, rho = steps.phi, steps.after, steps.rho
    *lead, length, d = phi.shape
    z, u = phi.new_zeros(*lead, d), phi.new_zeros(*lead, d)
    v = phi.new_zeros(*lead, d, d)
    b, a = phi.new_zeros(*lead, d), phi.new_zeros(*lead, d, d)
    decay = gamma * trace
    for t in range(length):
        there = (steps.weights[..., t] > 0).to(phi.dtype)
        r = (rho[..., t] * there).unsqueeze(-1)
        less = ((rho[..., t] - 1.0) * there).unsqueeze(-1)
        f, f2, pay = phi[..., t, :], after[..., t, :], steps.rewards[..., t].unsqueeze(-1)
        z = r * (decay * z + f)
        b = b + pay * z + less * u
        a = a + _outer(z, f - gamma * f2) + less.unsqueeze(-1) * v
        on = decay * (~steps.done[..., t]).to(phi.dtype).unsqueeze(-1)
        u = on * (r * u + pay * z)
        v = on.unsqueeze(-1) * (r.unsqueeze(-1) * v + _outer(z, f - f2))
        z = z * (~steps.done[..., t]).to(phi.dtype).unsqueeze(-1)
    return a, b


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(-1) * y.unsqueeze(-2)


# --- first visits


def first_visits(
    cells: Tensor, rewards: Tensor, done: Tensor, mask: Tensor, gamma: float, count: int
) -> tuple[Tensor, Tensor]:
    """Compute the discounted return from every user's first visit of each state.

    Args:
        cells: [..., T] state indices below `count`.
        rewards: [..., T].
        done: [..., T] bool; rewards after a truncation are unknown and count as 0.
        mask: [..., T] bool, false for padding.
        gamma: Discount.
        count: S.

    Returns:
        [..., S] returns, 0 for states not visited, and [..., S] bool, whether a state was visited.
    """
    shape = (*cells.shape[:-1], count)
    found = torch.zeros(shape, dtype=torch.float64)
    seen = torch.zeros(shape, dtype=torch.bool)
    after = torch.zeros(shape[:-1], dtype=torch.float64)
    for t in range(cells.shape[-1] - 1, -1, -1):  # backwards: the first visit is written last
        there = mask[..., t]
        after = torch.where(done[..., t], torch.zeros_like(after), after) * gamma
        after = torch.where(there, rewards[..., t].double() + after, torch.zeros_like(after))
        at = cells[..., t : t + 1]
        old, was = found.gather(-1, at), seen.gather(-1, at)
        found.scatter_(-1, at, torch.where(there[..., None], after[..., None], old))
        seen.scatter_(-1, at, was | there[..., None])
    return found, seen


class Visits(NamedTuple):
    """Sums of first visits over users: `total` [..., S] returns and `visits` [..., S] users, |X_s|."""

    total: Tensor
    visits: Tensor

    @property
    def mean(self) -> Tensor:
        """F [..., S], the mean return from each state; 0 for states not visited."""
        return self.total / self.visits.clamp_min(1.0)


class SmoothSolution(NamedTuple):
    """Exact solution theta [..., d] and `bound` [...], a beta-smooth bound of its local L2 sensitivity."""

    theta: Tensor
    bound: Tensor


def spectral(x: Tensor) -> float:
    """Return the spectral norm."""
    return float(torch.linalg.matrix_norm(x.double(), 2))


def dp_lsw(seen: Visits, phi: Tensor, weights: Tensor, beta: float, width: float) -> SmoothSolution:
    """Compute DP-LSW: weighted regression of mean first-visit returns, (W^(1/2) Phi)^+ W^(1/2) F.

    bound = width |(W^(1/2) Phi)^+| sqrt(psi),
    psi = max over k >= 0 of exp(-k beta) sum over s of w_s / max(1, |X_s| - k)^2.

    Replacing one user changes F_s by at most width / max(1, |X_s|) (three cases: s was visited before,
    after, or both), and k replacements lower |X_s| by at most k. With exp(-k beta) inside the root the bound
    is even beta / 2-smooth.

    Args:
        seen: [..., S].
        phi: [S, d] features of the states.
        weights: [S] w >= 0, independent of the data.
        beta: Smoothness.
        width: Length of a public interval that contains 0 and every return.

    Returns:
        The solution without noise and its bound.

    Source:
        Balle, Gomrokchi and Precup 2016, theorem on DP-LSW, with R_max / (1 - gamma) for `width`.
    """
    root = weights.double().sqrt()
    inverse = torch.linalg.pinv(root[:, None] * phi.double())
    theta = (root * seen.mean.double()) @ inverse.mT
    psi = _largest(
        int(seen.visits.max()),
        lambda k: (weights.double() / (seen.visits - k).clamp_min(1.0).double() ** 2).sum(-1),
        beta,
    )
    return SmoothSolution(theta, width * spectral(inverse) * psi.sqrt())


def dp_lsl(
    seen: Visits,
    phi: Tensor,
    weights: Tensor,
    ridge: float,
    users: int,
    beta: float,
    width: float,
) -> SmoothSolution:
    """Compute DP-LSL: ridge regression of first-visit returns, weighted by visits.

    theta = (Phi^T G Phi + ridge / (2 m) I)^-1 Phi^T G F with G = diag(rho_s |X_s| / m), m users;
    bound = 2 width |Phi| / (ridge - |Phi|^2 max rho) sqrt(psi),
    psi = max over 0 <= k <= m of exp(-k beta) phi_k^2,
    phi_k = c sqrt(sum of rho_s min(|X_s| + k, m)) + |rho|, c = |Phi| max rho / sqrt(2 ridge).

    Proof sketch: with M = sum of rho_s |X_s| phi_s phi_s^T + ridge / 2 I, and M' of a neighbour, theta
    changes by M'^-1 Phi^T diag(rho) e, where |M'^-1| <= 2 / ridge; e_s is a difference of two returns if the
    user visited s before and after the replacement, a residual F - phi_s.theta if in one of the two, and
    |theta| <= width sqrt(sum of rho_s |X_s|) / sqrt(2 ridge). Hence the factor 2 is needed, and the bound is
    not tight: 2 / ridge would suffice.

    Args:
        seen: [..., S].
        phi: [S, d] features of the states.
        weights: [S] rho >= 0, independent of the data.
        ridge: lambda > |Phi|^2 max rho.
        users: m.
        beta: Smoothness, as in `dp_lsw`.
        width: As in `dp_lsw`.

    Returns:
        The solution without noise and its bound.

    Raises:
        ValueError: `ridge` is too small.

    Source:
        Balle, Gomrokchi and Precup 2016, theorem on DP-LSL. |Phi| is the spectral norm (the authors' code
        uses the larger Frobenius norm).
    """
    wide, rho = phi.double(), weights.double()
    norm, most = spectral(wide), float(rho.max())
    room = ridge - norm**2 * most
    if room <= 0:
        raise ValueError(f"ridge must exceed {norm**2 * most:g}, got {ridge:g}")
    g = rho * seen.visits.double() / users
    left = (g.unsqueeze(-1) * wide).mT @ wide + ridge / (2.0 * users) * torch.eye(wide.shape[1])
    theta = torch.linalg.solve(left, (g * seen.mean.double()) @ wide)
    c = norm * most / math.sqrt(2.0 * ridge)
    length = float(torch.linalg.vector_norm(rho))

    def spread(k: int) -> Tensor:
        inside = (rho * (seen.visits.double() + k).clamp_max(float(users))).sum(-1)
        return (c * inside.sqrt() + length) ** 2

    psi = _largest(users, spread, beta)
    return SmoothSolution(theta, 2.0 * width * norm / room * psi.sqrt())


def _largest(last: int, term, beta: float) -> Tensor:  # type: ignore[no-untyped-def]
    """Elementwise maximum over 0 <= k <= last of exp(-k beta) term(k)."""
    best = term(0)
    for k in range(1, last + 1):
        best = torch.maximum(best, math.exp(-k * beta) * term(k))
    return best


# --- known tables


def visits_within(move: Tensor, start: Tensor, horizon: int) -> Tensor:
    """Compute the expected number of visits of each state in `horizon` steps.

    Args:
        move: [S, S] transition probabilities; a row sums to 1 minus the probability of termination.
        start: [S] start distribution.
        horizon: Number of steps.

    Returns:
        [S].
    """
    at, visits = start, torch.zeros_like(start)
    for _ in range(horizon):
        visits, at = visits + at, at @ move
    return visits


def exact_moments(visits: Tensor, ahead: Tensor, pay: Tensor, phi: Tensor, gamma: float) -> Moments:
    """Compute A, b and C of the distribution of visited states.

    Args:
        visits: [S] expected visits under the behaviour policy, up to a factor.
        ahead: [S, S] transition probabilities under the target policy, as `move` in `visits_within`.
        pay: [S] expected rewards under the target policy.
        phi: [S, d].
        gamma: Discount.

    Returns:
        The moments, without leading axes.
    """
    left = (visits / visits.sum()).unsqueeze(-1) * phi
    return Moments(left.mT @ (phi - gamma * ahead @ phi), left.mT @ pay, left.mT @ phi)
