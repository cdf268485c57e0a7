"""Policy evaluation with linear values v(s) = phi(s).theta, from trajectories; T steps, d features.

With the ratios rho_t = pi(a_t | s_t) / pi_b(a_t | s_t), weights c_t of the steps, and phi = 0 after the end,

    A = sum c_t rho_t phi_t (phi_t - gamma phi_{t+1})^T
    b = sum c_t rho_t r_t phi_t,  C = sum c_t phi_t phi_t^T.

theta solves A theta = b (LSTD), and min over theta, max over w of w.(b - A theta) - w.C w / 2 (GTD2).

Sources: Liu et al. 2015 (the saddle point), Xie, Thomas and Miklau 2019 (its private form), Mahmood, van
Hasselt and Sutton 2014 (WIS-LSTD), Balle, Gomrokchi and Precup 2016 (first visits, DP-LSW, DP-LSL).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Steps(NamedTuple):
    """What evaluation sees of people.

    Attributes:
        phi: [..., T, d] features before each step.
        after: [..., T, d] features after it; zeros where the episode terminated.
        rewards, rho: [..., T]; importance ratios.
        weights: [..., T] c_t; zeros where no step happened.
        done: [..., T] bool: the episode is over or cut.
    """

    phi: Tensor
    after: Tensor
    rewards: Tensor
    rho: Tensor
    weights: Tensor
    done: Tensor


class Moments(NamedTuple):
    """A [..., d, d], b [..., d] and C [..., d, d] of the module's text."""

    A: Tensor
    b: Tensor
    C: Tensor


def moments(steps: Steps, gamma: float) -> Moments:
    """A, b and C of everybody, summed over T."""
    left = (steps.weights * steps.rho).unsqueeze(-1) * steps.phi
    return Moments(
        left.mT @ (steps.phi - gamma * steps.after),
        (left * steps.rewards.unsqueeze(-1)).sum(-2),
        (steps.weights.unsqueeze(-1) * steps.phi).mT @ steps.phi,
    )


def primal_dual_terms(steps: Steps, gamma: float, theta: Tensor, w: Tensor) -> Tensor:
    """[..., T, 2 d] what every step adds to (-A^T w, A theta - b + C w).

    The sum over a person's steps is the gradient in theta, and minus that in w.

    Args:
        steps: of each person.
        gamma: discount.
        theta, w: [..., T, d], to broadcast against steps.

    Source: Xie, Thomas and Miklau 2019, equation 4.1.
    """
    change = steps.phi - gamma * steps.after
    ratio = steps.weights * steps.rho
    dual = (steps.phi * w).sum(-1)  # [..., T] phi . w
    error = (change * theta).sum(-1) - steps.rewards
    primal = -(ratio * dual).unsqueeze(-1) * change
    negative = (ratio * error + steps.weights * dual).unsqueeze(-1) * steps.phi
    return torch.cat([primal, negative], dim=-1)


def solve(A: Tensor, b: Tensor) -> Tensor:
    """[..., d] A^+ b in double precision: the least-squares solution of least norm."""
    return (torch.linalg.pinv(A.double()) @ b.double().unsqueeze(-1)).squeeze(-1)


def mspbe(theta: Tensor, one: Moments) -> Tensor:
    """[...] (b - A theta)^T C^+ (b - A theta), in squared value units.

    Args:
        theta: [..., d].
        one: of the behaviour distribution, without leading axes.
    """
    rest = one.b.double() - theta.double() @ one.A.double().mT
    inverse = torch.linalg.pinv(one.C.double(), hermitian=True)
    return ((rest @ inverse) * rest).sum(-1).clamp_min(0.0)


def wis_lstd(steps: Steps, gamma: float, trace: float) -> tuple[Tensor, Tensor]:
    """A [..., d, d] and b [..., d] of WIS-LSTD(lambda), of each person: they add up over people.

    With on-policy data (rho = 1) this is LSTD(lambda); with trace = 0, LSTD with ratios.

    Args:
        steps: of each person; of `weights` only whether they are 0 counts.
        gamma: discount; its place after a terminated step is taken by features of zeros and a new trace.
        trace: lambda.

    Source: Mahmood, van Hasselt and Sutton 2014, as in their own program.
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
    """Discounted return from everybody's first visit of each state.

    Args:
        cells: [..., T] states, numbers below `count`.
        rewards, done, mask: [..., T]; what comes after a cut is not known and counts as 0.
        gamma: discount.
        count: S.

    Returns: [..., S] returns (0 where she never was) and [..., S] whether she was there.
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
    """Sums of first visits over people: `total` [..., S] returns and `visits` [..., S] people, |X_s|."""

    total: Tensor
    visits: Tensor

    @property
    def mean(self) -> Tensor:
        """[..., S] F, the mean return from each state; 0 where nobody was."""
        return self.total / self.visits.clamp_min(1.0)


class Smooth(NamedTuple):
    """An exact answer theta [..., d], and `bound` [...]: S(X), beta-smooth above its local L2 sensitivity."""

    theta: Tensor
    bound: Tensor


def spectral(x: Tensor) -> float:
    """Largest singular value."""
    return float(torch.linalg.matrix_norm(x.double(), 2))


def dp_lsw(seen: Visits, phi: Tensor, weights: Tensor, beta: float, width: float) -> Smooth:
    """DP-LSW: weighted regression of mean first-visit returns, (W^(1/2) Phi)^+ W^(1/2) F.

    bound = width |(W^(1/2) Phi)^+| sqrt(psi),
    psi = max over k >= 0 of exp(-k beta) sum over s of w_s / max(1, |X_s| - k)^2.

    Replacing one person moves F_s by at most width / max(1, |X_s|) (three cases: she was there before, after,
    or both), and k replacements lower |X_s| by at most k. With exp(-k beta) under the root the bound is even
    beta / 2-smooth.

    Args:
        seen: [..., S].
        phi: [S, d] features of the states.
        weights: [S] w >= 0, not from data.
        beta: of smoothness.
        width: length of a public interval that has 0 and every return in it.

    Source: Balle, Gomrokchi and Precup 2016, theorem on DP-LSW, with R_max / (1 - gamma) for `width`.
    """
    root = weights.double().sqrt()
    inverse = torch.linalg.pinv(root[:, None] * phi.double())
    theta = (root * seen.mean.double()) @ inverse.mT
    psi = _largest(
        int(seen.visits.max()),
        lambda k: (weights.double() / (seen.visits - k).clamp_min(1.0).double() ** 2).sum(-1),
        beta,
    )
    return Smooth(theta, width * spectral(inverse) * psi.sqrt())


def dp_lsl(
    seen: Visits,
    phi: Tensor,
    weights: Tensor,
    ridge: float,
    people: int,
    beta: float,
    width: float,
) -> Smooth:
    """DP-LSL: ridge regression of first-visit returns, weighted by visits.

    theta = (Phi^T G Phi + ridge / (2 m) I)^-1 Phi^T G F with G = diag(rho_s |X_s| / m), m people;
    bound = 2 width |Phi| / (ridge - |Phi|^2 max rho) sqrt(psi),
    psi = max over 0 <= k <= m of exp(-k beta) phi_k^2,
    phi_k = c sqrt(sum of rho_s min(|X_s| + k, m)) + |rho|, c = |Phi| max rho / sqrt(2 ridge).

    Why: with M = sum of rho_s |X_s| phi_s phi_s^T + ridge / 2 I, and M' a neighbour's, the change of theta is
    M'^-1 Phi^T diag(rho) e, where |M'^-1| <= 2 / ridge, e_s is a difference of two returns where she was
    before and after, a residual F - phi_s.theta where she was once, and
    |theta| <= width sqrt(sum of rho_s |X_s|) / sqrt(2 ridge). So the factor 2 is needed, and
    the bound has room: 2 / ridge would do.

    Args:
        seen: [..., S]; weights [S] rho >= 0, not from data; phi [S, d].
        ridge: lambda > |Phi|^2 max rho.
        people: m.
        beta, width: as for `dp_lsw`.

    Raises ValueError: `ridge` is too small.

    Source: Balle, Gomrokchi and Precup 2016, theorem on DP-LSL; |Phi| is the spectral norm here (their program
    takes Frobenius', which is larger).
    """
    wide, rho = phi.double(), weights.double()
    norm, most = spectral(wide), float(rho.max())
    room = ridge - norm**2 * most
    if room <= 0:
        raise ValueError(f"ridge must exceed {norm**2 * most:g}, got {ridge:g}")
    g = rho * seen.visits.double() / people
    left = (g.unsqueeze(-1) * wide).mT @ wide + ridge / (2.0 * people) * torch.eye(wide.shape[1])
    theta = torch.linalg.solve(left, (g * seen.mean.double()) @ wide)
    c = norm * most / math.sqrt(2.0 * ridge)
    length = float(torch.linalg.vector_norm(rho))

    def spread(k: int) -> Tensor:
        inside = (rho * (seen.visits.double() + k).clamp_max(float(people))).sum(-1)
        return (c * inside.sqrt() + length) ** 2

    psi = _largest(people, spread, beta)
    return Smooth(theta, 2.0 * width * norm / room * psi.sqrt())


def _largest(last: int, term, beta: float) -> Tensor:  # type: ignore[no-untyped-def]
    """Max over 0 <= k <= last of exp(-k beta) term(k), elementwise."""
    best = term(0)
    for k in range(1, last + 1):
        best = torch.maximum(best, math.exp(-k * beta) * term(k))
    return best


# --- known tables


def visits_within(move: Tensor, start: Tensor, horizon: int) -> Tensor:
    """[S] expected visits of each state in `horizon` steps.

    Args:
        move: [S, S] chances of the next state; what is missing to 1 ends the episode.
        start: [S].
    """
    at, visits = start, torch.zeros_like(start)
    for _ in range(horizon):
        visits, at = visits + at, at @ move
    return visits


def exact_moments(visits: Tensor, ahead: Tensor, pay: Tensor, phi: Tensor, gamma: float) -> Moments:
    """A, b, C of the distribution of visited states.

    Args:
        visits: [S] expected visits under the behaviour, to any scale.
        ahead: [S, S] chances of the next state under the evaluated policy; the missing part is the end.
        pay: [S] expected rewards under the evaluated policy.
        phi: [S, d].
    """
    left = (visits / visits.sum()).unsqueeze(-1) * phi
    return Moments(left.mT @ (phi - gamma * ahead @ phi), left.mT @ pay, left.mT @ phi)
