"""REINFORCE with DP-SGD: one clipped and noised gradient per episode.

    repeat for every round, their number fixed in advance:
        U users play one episode each with the released policy, with dropout
        each user: g <- sum over their steps of G_t * grad log pi(a_t | s_t), under the masks of the episode
        theta <- Adam step along (sum of clipped g + N(0, (z C)^2 I)) / U

With one user per round every episode is in one release. Adam depends on releases only and is post-processing.

`algo.signal`: G_t is the discounted return from t, minus the episode's mean and divided by its standard
deviation (`to_go`, the authors' code), or the discounted return of the episode at every step (`total`, the
paper's text). `algo.clipping=tensor` is the authors': every weight and bias is a block with the clip norm C, so
a row of four tensors has norm up to 2 C, and their noise sigma C on every tensor is z = sigma / 2.

Source: Doulazmi and Odonnat, DP-SGD REINFORCE on CartPole, and their code (+paper=reinforce).
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import (
    Algorithm,
    AlgorithmContext,
    each_replica,
    per_user,
    pooled_rows,
    user_draws,
)
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import ReinforceConfig
from privrl_bench.functional.averaging import averaged
from privrl_bench.functional.discounted_returns import gae, standardize
from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

_PIECE = 32  # steps whose gradient is taken at once: they stay in the cache


class Reinforce(Algorithm):
    """See the module's text. State tensors: `actor`, and Adam's `adam_m`, `adam_v`, all [R, P]."""

    policy: DropoutPolicy

    def __init__(self, config: ReinforceConfig, context: AlgorithmContext):
        self.config = config
        spec = context.spec
        self.policy = DropoutPolicy(spec, tuple(config.hidden), config.dropout)
        self._context = context

    def blocks(self) -> tuple[Block, ...]:
        """The separately clipped parts, in the order of the parameters."""
        clip = self._context.privacy.clip
        if self.config.clipping == "joint":
            return (Block("actor", self.policy.size, clip),)
        names = [f"{kind}{k}" for k in range(len(self.policy.net.shapes)) for kind in "Wb"]
        sizes = self.policy.net.splits
        return tuple(Block(name, size, clip) for name, size in zip(names, sizes, strict=True))

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        actor = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        zeros = torch.zeros_like(actor)
        return State(0, {"actor": actor, "adam_m": zeros, "adam_v": zeros.clone()})

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The constant step size."""
        return each_replica(state, lr=self.config.lr)

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One gradient per user; with privacy=none one per replica, the sum over users / U.

        Guarantee: row u is a function of user u's episode and masks, and of the released policy.
        """
        actor, weights = state.tensors["actor"], self._signal(users)
        replicas, count, steps = users.mask.shape
        drawn = user_draws(  # as in the collector
            users, streams, "policy", state.round, lambda g, n: self.policy.draw(g, steps, n)
        )
        noise = torch.stack(drawn)
        batch = [per_user(x) for x in (users.obs, users.actions, noise.transpose(1, 2), weights)]
        rows = torch.zeros(replicas * count, self.policy.size, dtype=actor.dtype)
        lengths = users.mask.sum(-1).flatten()
        # In pieces of public length, so that the bits of a row do not depend on the length of others' episodes.
        for start in range(0, int(lengths.max()), _PIECE):
            who = (lengths > start).nonzero().squeeze(-1)
            piece = [_piece(x[who, start : start + _PIECE]) for x in batch]
            rows.index_add_(0, who, self.policy.score(actor[who // count], *piece))
        rows = rows.reshape(replicas, count, -1)
        valid = users.valid
        if self._context.privacy.mechanism.pooled:  # all users in one row
            rows, valid = pooled_rows(rows, valid)
            rows = rows / self._context.privacy.users
        parts = rows.split([block.size for block in self.blocks()], dim=-1)
        named = {block.name: x for block, x in zip(self.blocks(), parts, strict=True)}
        return Contribution(named, valid)

    def _signal(self, users: UserBatch) -> Tensor:
        """[R, U, T] G_t; the normalised signal is 0 for an episode of one step or of equal returns."""
        longest = max(int(users.mask.sum(-1).max()), 1)  # everything after it is 0
        rewards, done = (x[..., :longest] for x in (users.rewards, users.done))
        zeros, to_go = torch.zeros_like(rewards), torch.zeros_like(users.rewards)
        to_go[..., :longest] = gae(rewards, zeros, zeros, done, done, self.config.gamma, 1.0)
        if self.config.signal == "to_go":
            return standardize(to_go, users.mask)
        return to_go[..., :1] * users.mask

    def server(self, state: State, released: Released) -> State:
        """One ascent step of Adam."""
        tensors = state.tensors
        gradient = torch.cat([released.values[block.name] for block in self.blocks()], dim=-1)
        adam = Adam(tensors["adam_m"], tensors["adam_v"], state.round)
        actor, adam = adam_step(tensors["actor"], -gradient, adam, self.config.lr, eps=1e-8)
        moved = {"adam_m": adam.m, "adam_v": adam.v}
        kept = averaged(dict(tensors) | {"actor": actor}, self.config.averaging, state.round)
        return State(state.round + 1, kept | moved)


def _piece(x: Tensor) -> Tensor:
    """[N, at most _PIECE, ...] steps, padded with zeros, whose weight is zero."""
    missing = _PIECE - x.shape[1]
    return torch.cat([x, x.new_zeros(len(x), missing, *x.shape[2:])], dim=1) if missing else x


ALGORITHM = Reinforce
