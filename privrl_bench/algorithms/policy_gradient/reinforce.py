"""REINFORCE with DP-SGD: one clipped and noised gradient for every episode.

    repeat for every round, their number fixed in advance:
        U users play one whole episode each with the released policy, dropout on
        each user: g <- sum over her steps of G_t * grad log pi(a_t | s_t), under the masks she acted with
        theta <- Adam step along (sum of clipped g + N(0, (z C)^2 I)) / U

With one user in a round every episode is in one release. Adam only sees releases, so it is post-processing.

`algo.signal`: G_t is the discounted return from t on, less the episode's mean and divided by its standard
deviation (`to_go`, the authors' code), or the discounted return of the whole episode at every step (`total`,
the paper's text). `algo.clipping=tensor` is the authors' too: every weight and bias is a block with the whole
clip C, so a row of four tensors has norm up to 2 C, and their noise sigma C on every tensor is z = sigma / 2.

Source: Doulazmi and Odonnat, DP-SGD REINFORCE on CartPole, and their code (+paper=reinforce).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, per_user
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, require, require_choice
from privrl_bench.functional.discounted_returns import gae, standardize
from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

_PIECE = 32  # steps whose gradient is taken at once: they stay in the cache


@dataclass
class ReinforceConfig(AlgoConfig):
    """Settings of REINFORCE."""

    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian", "none")
    whole_episodes: ClassVar[bool] = True

    name: str = "reinforce"
    hidden: list[int] = field(default_factory=lambda: [128])  # ReLU layers
    dropout: float = 0.5  # chance that a hidden unit is dropped while users act
    lr: float = 0.01  # Adam, at the server
    signal: str = "to_go"  # to_go: return from here on, normalised | total: the episode's return
    clipping: str = "joint"  # joint: the whole row | tensor: every weight and bias by itself

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = all(h >= 1 for h in self.hidden)
        require("algo.hidden", ok, "a list of layer widths >= 1 (empty: linear)", self.hidden)
        require("algo.dropout", 0 <= self.dropout < 1, "in [0, 1)", self.dropout)
        require("algo.lr", math.isfinite(self.lr) and self.lr > 0, "> 0", self.lr)
        require_choice("algo.signal", self.signal, ("to_go", "total"))
        require_choice("algo.clipping", self.clipping, ("joint", "tensor"))


class Reinforce(Algorithm):
    """See the module's text. State tensors: `actor`, and Adam's `adam_m`, `adam_v`, all [R, P]."""

    policy: DropoutPolicy

    def __init__(self, config: ReinforceConfig, setup: AlgorithmContext):
        if not setup.spec.discrete:
            raise ConfigError(
                "env", f"algo=reinforce needs a choice of actions, which {setup.spec.name} has not"
            )
        self.config = config
        self.policy = DropoutPolicy(setup.spec, tuple(config.hidden), config.dropout)
        self._setup = setup

    def blocks(self) -> tuple[Block, ...]:
        """The parts that are clipped by themselves, in the order of the parameters."""
        clip = self._setup.clip
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

    def learning_rate(self, round_index: int) -> float:
        """Constant."""
        return self.config.lr

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One gradient for each user; with privacy=none one for each replica, the sum over users / U.

        Guarantee: row u is a function of user u's episode and masks, and of the released policy.
        """
        actor, weights = state.tensors["actor"], self._signal(users)
        replicas, count, steps = users.mask.shape
        draws = [s.torch("policy", state.round) for s in streams]
        noise = torch.stack([self.policy.draw(g, steps, count) for g in draws])  # as in rollout
        batch = [per_user(x) for x in (users.obs, users.actions, noise.transpose(1, 2), weights)]
        rows = torch.zeros(replicas * count, self.policy.size, dtype=actor.dtype)
        lengths = users.mask.sum(-1).flatten()
        # Piece by piece of public length, so that no bit of a row depends on how long others play.
        for start in range(0, int(lengths.max()), _PIECE):
            who = (lengths > start).nonzero().squeeze(-1)
            piece = [_piece(x[who, start : start + _PIECE]) for x in batch]
            rows.index_add_(0, who, self.policy.score(actor[who // count], *piece))
        rows = rows.reshape(replicas, count, -1)
        valid = users.valid
        if self._setup.mechanism.pooled:  # everybody in one row
            rows = torch.where(valid[..., None], rows, 0.0).sum(1, keepdim=True) / self._setup.users
            valid = valid.any(1, keepdim=True)
        parts = rows.split([block.size for block in self.blocks()], dim=-1)
        named = {block.name: x for block, x in zip(self.blocks(), parts, strict=True)}
        return Contribution(named, valid)

    def _signal(self, users: UserBatch) -> Tensor:
        """[R, U, T] G_t; what `to_go` normalises is 0 for an episode of one step or of equal returns."""
        longest = max(int(users.mask.sum(-1).max()), 1)  # after it every number is 0
        rewards, done = (x[..., :longest] for x in (users.rewards, users.done))
        zeros, to_go = torch.zeros_like(rewards), torch.zeros_like(users.rewards)
        to_go[..., :longest] = gae(rewards, zeros, zeros, done, done, self.config.gamma, 1.0)
        if self.config.signal == "to_go":
            return standardize(to_go, users.mask)
        return to_go[..., :1] * users.mask

    def server(self, state: State, released: Released) -> State:
        """One step of Adam uphill."""
        tensors = state.tensors
        gradient = torch.cat([released.values[block.name] for block in self.blocks()], dim=-1)
        adam = Adam(tensors["adam_m"], tensors["adam_v"], state.round)
        actor, adam = adam_step(tensors["actor"], -gradient, adam, self.config.lr, eps=1e-8)
        return State(state.round + 1, {"actor": actor, "adam_m": adam.m, "adam_v": adam.v})


def _piece(x: Tensor) -> Tensor:
    """[N, at most _PIECE, ...] steps, filled up with steps of zeros, whose weight is zero, too."""
    missing = _PIECE - x.shape[1]
    return torch.cat([x, x.new_zeros(len(x), missing, *x.shape[2:])], dim=1) if missing else x


ALGORITHM, CONFIG = Reinforce, ReinforceConfig
