"""A linear model of the dynamics and rewards of each action, from sums over recorded trajectories.

phi are d functions of a scaled observation: the principal components, of unit variance on the public users'
states, of all monomials up to degree 2 or of random Fourier features; at most `features` of them (by default
the fewer, the fewer users, as noise hides more), and none whose variance is below 1e-4 of the largest. After a
terminated step phi is 0. With w = 1 / (number of steps of the user), for each action a

    S_a = sum over the user's steps with a of w phi phi^T      N_a = sum w phi (phi' - phi)^T
    R_a = sum w phi (r - r_1)

A user's row is (S_a, N_a / n_0, R_a / r_0), its length in units of the public users' median l_0, clipped to
privacy.clip. n_0, r_0, l_0 and the mean reward r_1 are computed from the public users. With s the standard
deviation of the noise in a number of the mean over n users, S_a projected to positive semidefinite, and
rho = ridge s sqrt(d),

    G_a = (S_a + rho I)^-1,  M_a = G_a N_a,  c_a = r_1 k + G_a R_a,  phi . k the projection of 1
    action values of a function v of states, v(s) = phi(s) . v:   phi . (c_a + gamma M_a v + gamma v)

With the ridge the model tends to "nothing changes, the reward is r_1", not to "the next value and the reward
are 0".

Source: Wang 2018 (AdaSSP: noised sums and a ridge from the known noise), Rahimi and Recht 2007 (random Fourier
features).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms
from privrl_bench.packs.offline.datasets.trajectories import fixed_order
from privrl_bench.packs.offline.learning.action_values import ActionValuePolicy
from privrl_bench.packs.offline.learning.learning_settings import FEW, LinearModelConfig
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import UserBatch

_STATES = 3000  # of public users, on which values are projected
_SMALL = 1e-4  # ridge of that projection, relative
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


class LinearDynamics(NamedTuple):
    """G [..., A, d, d], M [..., A, d, d] and c [..., A, d], double precision."""

    G: Tensor
    M: Tensor
    c: Tensor


class LinearModel(Algorithm):
    """Base of algorithms that release the sums of a linear model once; see the module.

    Args:
        config: settings of the algorithm.
        context: of the run.
    """

    config: LinearModelConfig

    def __init__(self, config: LinearModelConfig, context: AlgorithmContext):
        public = context.sources.transitions
        assert public is not None
        self.config, self._context = config, context
        self._basis = ActionValuePolicy(context.spec, config.basis, config.frequency)
        lengths = public.lengths
        share = (1.0 / lengths.double()).repeat_interleave(lengths)
        raw = self._basis.raw(public.obs).double()
        second = (raw * share[:, None]).mT @ raw / len(lengths)
        size, vectors = torch.linalg.eigh(second)
        size, vectors = size.flip(0), vectors.flip(1)
        few = min(max(int(math.sqrt(context.privacy.users / 20)), 3), 15)
        d = min(config.features or few, int((size > _INDEPENDENT * size[0]).sum()))
        # [K, d], from raw features to phi.
        self._mix = (vectors / size.clamp_min(1e-30).sqrt())[:, :d].float()
        self._public, self._d, count = len(lengths), d, context.spec.actions
        after = torch.where(public.terminated[:, None], 0.0, self._phi(public.next_obs))
        # r_1
        self._typical = float((public.rewards.double() * share).sum() / len(lengths))
        rewards = public.rewards - self._typical
        columns = (self._phi(public.obs), after, public.actions, rewards, share.float())
        episodes = zip(*(x.split(lengths.tolist()) for x in columns), strict=True)
        sums = [sums_of(count, *columns) for columns in episodes]
        found = SufficientSums(*(torch.stack(x) for x in zip(*sums, strict=True)))
        self._units = torch.ones(3)
        self._units[1] = float(found.N.norm() / found.S.norm()) or 1.0
        self._units[2] = float(rewards.abs().max()) or 1.0
        self._length = float(self._rows(found).norm(dim=-1).median()) or 1.0
        least, largest = float(public.rewards.min()), float(public.rewards.max())
        horizon = float(context.spec.max_episode_steps)
        if config.gamma < 1:
            horizon = min(horizon, 1.0 / (1.0 - config.gamma))
        self._possible = min(least, 0.0) * horizon, max(largest, 0.0) * horizon
        # At fixed distances they could all be of one time of the episodes.
        self._observed = public.obs[torch.from_numpy(fixed_order(len(public.obs))[:_STATES].copy())]
        self._unseen = sorted(set(range(count)) - set(public.actions.long().tolist()))
        self._states = self._phi(self._observed).double()
        self._upper = torch.triu_indices(d, d)
        self._row = count * (d * (d + 1) // 2 + d * d + d)

    def _phi(self, obs: Tensor) -> Tensor:
        """[..., d] features of scaled observations."""
        return self._basis.raw(obs) @ self._mix

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
        warning = ""
        if self._public < FEW:
            warning = f"features and units are of {self._public} public episodes; raise data.public"
        elif self._unseen:
            which = ", ".join(map(str, self._unseen))
            warning = f"no public user takes action {which}: its value is made up where no other user does"
        return AlgorithmTerms(unit=unit, notes=notes, warning=warning)

    def own_sums(self, users: UserBatch) -> Tensor:
        """[R, U, P] rows: row u is a function of user u's steps and of public users' data."""
        share = users.mask / users.mask.sum(-1, keepdim=True).clamp_min(1)
        count = self._context.spec.actions
        before = users.obs.new_zeros(*users.mask.shape, self._d)
        after = before.clone()
        # Each user's steps alone: the last bits of a product depend on what else is in it.
        for r, u in users.mask.any(-1).nonzero().tolist():
            own = users.mask[r, u]
            obs, ahead = users.obs[r, u, own], users.next_obs[r, u, own]
            phi = self._phi(torch.cat([obs, ahead[-1:]]))
            next_phi, other = phi[1:].clone(), (ahead[:-1] != obs[1:]).any(-1).nonzero()[:, 0]
            # The next observation is that before the next step, unless an episode ended.
            if len(other):
                next_phi[other] = self._phi(ahead[other])
            next_phi[users.terminated[r, u, own]] = 0.0
            before[r, u, own], after[r, u, own] = phi[:-1], next_phi
        rewards = users.rewards - self._typical
        found = sums_of(count, before, after, users.actions, rewards, share)
        return self._rows(found) / self._length

    def deviation(self, std: float) -> float:
        """e: standard deviation of a released number by noise, and by chance if it is spread evenly.

        e^2 = std^2 + clip^2 / (P n): the second is the largest variance of a mean of clipped rows of P numbers.
        """
        privacy = self._context.privacy
        return math.hypot(std, privacy.clip / math.sqrt(self._row * privacy.users))

    def model(self, found: SufficientSums, std: float) -> LinearDynamics:
        """The model of released sums, whose numbers have noise of this standard deviation."""
        size, vectors = torch.linalg.eigh(found.S)
        size = size.clamp_min(0.0)
        least = 1e-6 * size.mean(-1, keepdim=True)
        ridge = least.clamp_min(max(self.config.ridge * std * math.sqrt(self._d), 1e-30))
        G = (vectors / (size + ridge)[..., None, :]) @ vectors.mT
        return LinearDynamics(G, G @ found.N, self.usual() + (G @ found.R[..., None])[..., 0])

    def usual(self) -> Tensor:
        """[d] r_1 k."""
        return self._typical * self.projection().sum(-1)

    def projection(self) -> Tensor:
        """[d, n] from values at the n public states to v."""
        x = self._states
        second = x.mT @ x
        eye = torch.eye(self._d, dtype=torch.float64)
        return torch.linalg.solve(second + _SMALL * second.trace() / self._d * eye, x.mT)
