"""Least-squares policy iteration from one noised release about recorded trajectories.

phi are d functions of a scaled observation: the principal components, of unit variance on the public users'
states, of all monomials up to degree 2 or of random Fourier features; at most `features` of them (by default
the fewer, the fewer users, as noise hides more), and none whose variance is below 1e-4 of the largest. After a
terminated step phi is 0. With w = 1 / (number of steps of the user), for each action a

    S_a = sum over the user's steps with a of w phi phi^T      N_a = sum w phi (phi' - phi)^T
    R_a = sum w phi r

A user's row is (S_a, N_a / n_0, R_a / r_0), its length in units of the public users' median l_0, clipped to
privacy.clip. n_0, r_0 and l_0 are computed from the public users. With s the standard deviation of the noise in
a number of the mean over n users, S_a projected to positive semidefinite, and rho = ridge s sqrt(d),

    G_a = (S_a + rho I)^-1,  M_a = G_a N_a,  c_a = G_a R_a
    repeat:  h_a = c_a + gamma M_a v,   theta_a = h_a + gamma v
             q_a = phi . theta_a - pessimism e |G_a phi| sqrt(r_0^2 + gamma^2 n_0^2 |v|^2 + |h_a|^2)
             v <- least squares of max over a of q_a, clipped to possible values, on public states

e |G_a phi| sqrt(...) is the standard deviation of phi . theta_a if that of every released number is e, where
e^2 = s^2 + clip^2 / (P n): noise, and the largest variance of a mean of clipped rows of P numbers, spread
evenly. With the ridge the model tends to "nothing changes", not to "the next value is 0". The policy takes the
action of the largest least squares of q_a, a mean over the last iterations.

Guarantee: formal, for one user with all their episodes: one Gaussian release about all users, n public. Row u
is a function of user u's steps and of public users' data, clipped by the gate. What follows is post-processing.

Source: Lagoudakis and Parr 2003 (LSPI), Wang 2018 (AdaSSP: noised sums and a ridge from the known noise),
Rahimi and Recht 2007 (random Fourier features).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.learning.action_values import ActionValuePolicy
from privrl_bench.packs.offline.learning.learning_settings import FEW, DpLspiConfig
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, UserBatch

_STATES = 3000  # of public users, on which values are projected
_AVERAGED = 20  # last iterations, whose mean is the result
_SMALL = 1e-4  # ridge of that projection, relative
_ROOM = 1.0  # of the range of values, beyond it on both sides: a clip at its ends bends the values within
_INDEPENDENT = 1e-4  # least variance of a component, relative to the largest


class SufficientSums(NamedTuple):
    """S [..., A, d, d], N [..., A, d, d] and R [..., A, d]."""

    S: Tensor
    N: Tensor
    R: Tensor


def sums_of(
    count: int, before: Tensor, after: Tensor, actions: Tensor, rewards: Tensor, share: Tensor
) -> SufficientSums:
    """S, N and R of every user.

    Args:
        count: A.
        before: [..., T, d] features.
        after: [..., T, d] features of the next state, zeros after a termination.
        actions: [..., T] choices.
        rewards: [..., T].
        share: [..., T] w, zeros for padding.
    """
    chosen = torch.nn.functional.one_hot(actions.long(), count).to(before) * share[..., None]
    left = (chosen.mT[..., None] * before[..., None, :, :]).mT  # [..., A, d, T]
    parts = (before, after - before, rewards[..., None])
    S, N, R = (left @ part[..., None, :, :] for part in parts)
    return SufficientSums(S, N, R[..., 0])


def spread(h: Tensor, change: Tensor, reward: float) -> Tensor:
    """[A] standard deviation of phi . theta_a in units of e |G_a phi|, see the module.

    theta_a changes by G_a (dR_a + gamma dN_a v - dS_a h_a), to first order.

    Args:
        h: [A, d].
        change: [d] gamma n_0 v.
        reward: r_0.
    """
    return (reward**2 + change @ change + h.square().sum(-1)).sqrt()


class DpLspi(Algorithm):
    """DP-LSPI; see the module. State tensor: `actor` [R, A K], weights of the K raw features.

    Args:
        config: settings of the algorithm.
        context: of the run.
    """

    policy: ActionValuePolicy

    def __init__(self, config: DpLspiConfig, context: AlgorithmContext):
        public = context.sources.transitions
        assert public is not None
        self.config, self._context = config, context
        self.policy = ActionValuePolicy(context.spec, config.basis, config.frequency)
        lengths = public.lengths
        share = (1.0 / lengths.double()).repeat_interleave(lengths)
        raw = self.policy.raw(public.obs).double()
        second = (raw * share[:, None]).mT @ raw / len(lengths)
        size, vectors = torch.linalg.eigh(second)
        size, vectors = size.flip(0), vectors.flip(1)
        few = min(max(int(math.sqrt(context.privacy.users / 20)), 3), 15)
        d = min(config.features or few, int((size > _INDEPENDENT * size[0]).sum()))
        # [K, d], from raw features to phi.
        self._mix = (vectors / size.clamp_min(1e-30).sqrt())[:, :d].float()
        self._public, self._d, rewards, count = (
            len(lengths),
            d,
            public.rewards,
            context.spec.actions,
        )
        after = torch.where(public.terminated[:, None], 0.0, self._phi(public.next_obs))
        columns = (self._phi(public.obs), after, public.actions, rewards, share.float())
        episodes = zip(*(x.split(lengths.tolist()) for x in columns), strict=True)
        sums = [sums_of(count, *columns) for columns in episodes]
        found = SufficientSums(*(torch.stack(x) for x in zip(*sums, strict=True)))
        self._units = torch.ones(3)
        self._units[1] = float(found.N.norm() / found.S.norm()) or 1.0
        self._units[2] = float(rewards.abs().max()) or 1.0
        self._length = float(self._rows(found).norm(dim=-1).median()) or 1.0
        least, largest = float(rewards.min()), float(rewards.max())
        horizon = float(context.spec.max_episode_steps)
        if config.gamma < 1:
            horizon = min(horizon, 1.0 / (1.0 - config.gamma))
        low, high = min(least, 0.0) * horizon, max(largest, 0.0) * horizon
        room = _ROOM * (high - low)
        self._range = low - room, high + room
        self._states = self._phi(public.obs[:: max(1, len(public.obs) // _STATES)]).double()
        self._upper = torch.triu_indices(d, d)
        self._row = count * (d * (d + 1) // 2 + d * d + d)

    def _phi(self, obs: Tensor) -> Tensor:
        """[..., d] features of scaled observations."""
        return self.policy.raw(obs) @ self._mix

    def _rows(self, found: SufficientSums) -> Tensor:
        """[..., P] S as its upper triangle with the same norm, N and R, each in its unit."""
        d = found.S.shape[-1]
        above, across = torch.triu_indices(d, d)
        scale = torch.where(above == across, 1.0, math.sqrt(2.0))
        S = found.S[..., above, across] * scale
        N, R = found.N / self._units[1], found.R / self._units[2]
        return torch.cat([S.flatten(-2), N.flatten(-3), R.flatten(-2)], dim=-1)

    def _sums(self, rows: Tensor) -> SufficientSums:
        """The inverse of `_rows`."""
        d, A = self._d, self._context.spec.actions
        above, across = self._upper
        half, N, R = rows.split([A * len(above), A * d * d, A * d], dim=-1)
        scale = torch.where(above == across, 1.0, 1.0 / math.sqrt(2.0)).to(rows)
        S = rows.new_zeros(*rows.shape[:-1], A, d, d)
        S[..., above, across] = S[..., across, above] = half.unflatten(-1, (A, -1)) * scale
        N = N.unflatten(-1, (A, d, d)) * self._units[1]
        return SufficientSums(S, N, R.unflatten(-1, (A, d)) * self._units[2])

    def blocks(self) -> tuple[Block, ...]:
        """One block, the row in units of the public users' median length."""
        return (Block("sums", self._row, self._context.privacy.clip),)

    def terms(self) -> AlgorithmTerms:
        """The unit is a user with all trajectories."""
        steps = self._context.spec.max_episode_steps
        unit = Unit(f"one user: all trajectories, each of at most {steps} steps, used once", 1)
        notes = {
            "tuning": "features, ridge and clip are assumed to be chosen without these users' data"
        }
        warning = f"features and units are of {self._public} public episodes; raise data.public"
        few = self._public < FEW
        return AlgorithmTerms(unit=unit, notes=notes, warning=warning if few else "")

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: action values of zero."""
        return State(0, {"actor": torch.zeros(len(streams), self.policy.size)})

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """[R, U, P] rows.

        Guarantee: row u is a function of user u's steps and of public users' data.
        """
        share = users.mask / users.mask.sum(-1, keepdim=True).clamp_min(1)
        after = torch.where(users.terminated[..., None], 0.0, self._phi(users.next_obs))
        count, before = self._context.spec.actions, self._phi(users.obs)
        found = sums_of(count, before, after, users.actions, users.rewards, share)
        return Contribution({"sums": self._rows(found) / self._length}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: the policy of each replica's sums."""
        n, rows = self._context.privacy.users, released.values["sums"].double()
        actors = [
            self._solved(self._sums(row), self._context.schedule.stds[r]["sums"] / n)
            for r, row in enumerate(rows)
        ]
        return State(state.round + 1, {"actor": torch.stack(actors)})

    def _solved(self, found: SufficientSums, std: float) -> Tensor:
        """Weights [A K] of raw features, from released sums with noise of this standard deviation."""
        config, gamma = self.config, self.config.gamma
        eye = torch.eye(self._d, dtype=torch.float64)
        size, vectors = torch.linalg.eigh(found.S)
        size = size.clamp_min(0.0)
        least = 1e-6 * size.mean(-1, keepdim=True)
        ridge = least.clamp_min(max(config.ridge * std * math.sqrt(self._d), 1e-30))
        G = (vectors / (size + ridge)[..., None, :]) @ vectors.mT
        M, c = G @ found.N, (G @ found.R[..., None])[..., 0]
        x = self._states
        second = x.mT @ x
        project = torch.linalg.solve(second + _SMALL * second.trace() / len(eye) * eye, x.mT)
        privacy = self._context.privacy
        e = math.hypot(std, privacy.clip / math.sqrt(self._row * privacy.users))
        unsure = config.pessimism * e * (x @ G).norm(dim=-1).mT  # [n, A]
        n_0, r_0 = float(self._units[1]), float(self._units[2])
        v, total = torch.zeros(len(eye), dtype=torch.float64), torch.zeros_like(c.mT)
        for k in range(config.iterations):
            h = c + gamma * M @ v
            q = x @ (h + gamma * v).mT - unsure * spread(h, gamma * n_0 * v, r_0)
            v = project @ q.max(-1).values.clamp(*self._range)
            if k >= config.iterations - _AVERAGED:
                total += project @ q / min(_AVERAGED, config.iterations)
        return (total.mT.float() @ self._mix.mT).flatten()


ALGORITHM = DpLspi
