"""Least-squares policy iteration from one noised release about recorded trajectories.

With G, M and c of `linear_model`, and e the standard deviation of a released number,

    repeat:  h_a = c_a + gamma M_a v,   theta_a = h_a + gamma v
             q_a = phi . theta_a - pessimism e |G_a phi| sqrt(r_0^2 + gamma^2 n_0^2 |v|^2 + |h_a - r_1 k|^2)
             v <- least squares of max over a of q_a, clipped to possible values, on public states

e |G_a phi| sqrt(...) is the standard deviation of phi . theta_a. The policy takes the action of the largest
least squares of q_a, a mean over the last iterations.

Guarantee: formal, for one user with all their episodes: one Gaussian release about all users, n public. Row u
is a function of user u's steps and of public users' data, clipped by the gate. What follows is post-processing.

Source: Lagoudakis and Parr 2003 (LSPI).
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.learning.action_values import ActionValuePolicy
from privrl_bench.packs.offline.learning.learning_settings import DpLspiConfig
from privrl_bench.packs.offline.learning.linear_model import LinearModel, SufficientSums
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, UserBatch

_AVERAGED = 20  # last iterations, whose mean is the result
_ROOM = 1.0  # of the range of values, beyond it on both sides: a clip at its ends bends the values within


def spread(h: Tensor, change: Tensor, reward: float) -> Tensor:
    """[A] standard deviation of phi . theta_a in units of e |G_a phi|, see the module.

    theta_a changes by G_a (dR_a + gamma dN_a v - dS_a (h_a - r_1 k)), to first order.

    Args:
        h: [A, d] h_a - r_1 k.
        change: [d] gamma n_0 v.
        reward: r_0.
    """
    return (reward**2 + change @ change + h.square().sum(-1)).sqrt()


class DpLspi(LinearModel):
    """DP-LSPI; see the module. State tensor: `actor` [R, A K], weights of the K raw features.

    Args:
        config: settings of the algorithm.
        context: of the run.
    """

    config: DpLspiConfig
    policy: ActionValuePolicy

    def __init__(self, config: DpLspiConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self.policy = self._basis
        low, high = self._possible
        room = _ROOM * (high - low)
        self._range = low - room, high + room

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: action values of zero."""
        return State(0, {"actor": torch.zeros(len(streams), self.policy.size)})

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """[R, U, P] rows.

        Guarantee: row u is a function of user u's steps and of public users' data.
        """
        return Contribution({"sums": self.own_sums(users)}, users.valid)

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
        G, M, c = self.model(found, std)
        x, project, usual = self._states, self.projection(), self.usual()
        unsure = config.pessimism * self.deviation(std) * (x @ G).norm(dim=-1).mT  # [n, A]
        n_0, r_0 = float(self._units[1]), float(self._units[2])
        v, total = torch.zeros(self._d, dtype=torch.float64), torch.zeros_like(c.mT)
        for k in range(config.iterations):
            h = c + gamma * M @ v
            q = x @ (h + gamma * v).mT - unsure * spread(h - usual, gamma * n_0 * v, r_0)
            v = project @ q.max(-1).values.clamp(*self._range)
            if k >= config.iterations - _AVERAGED:
                total += project @ q / min(_AVERAGED, config.iterations)
        return (total.mT.float() @ self._mix.mT).flatten()


ALGORITHM = DpLspi
