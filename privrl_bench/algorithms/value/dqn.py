"""DQN whose unit is a person: what she did stays with her, and she may join any of the rounds.

    repeat for every round, their number fixed in advance:
        every `act_every` rounds: `new_users` people who were never here play one episode each, epsilon-greedy
        each of N people joins with probability q = U / N
        each who joined: the mean gradient of the temporal-difference loss over her own steps, kept in a ball
            of radius clip
        g <- (sum of gradients + N(0, (z clip)^2 I)) / U
        Q <- AdamW along g;  target <- target + tau (Q - target)

Guarantee: (epsilon, delta) for one person, with all she did and all rounds that used it, central, under
add-or-remove, as the composition of Poisson-sampled Gaussians over all planned rounds:

1. Her steps are a function of her own environment and randomness and of Q and epsilon when she came, which
   were released. When she comes is her number, given beforehand: without her that place is empty and nobody
   else's moves. So removing her changes nobody else's data but through releases.
2. Given the releases so far, a row is a function of her steps and of her own random choice among them: Q,
   target and AdamW's moments are functions of releases; epsilon of the public round number. So a round adds a
   sum of clipped rows, one for each person, of which hers is one or (absent) none.
3. Everybody joins by herself with q in every round, drawn by the gate (`plan.members`) from N numbers, a public
   bound; a number nobody has yet, or never will, is a row of zeros. So a round is one Poisson-sampled Gaussian
   with (q, z), whether or not she has come, and each round is accounted, before her arrival as well.
4. The rounds are an adaptive composition, and what follows from releases is post-processing.

The private DQN of Doulazmi and Odonnat counts single transitions (`dqn_replay.py`): noise on them is no bound
for a person, whose later steps all depend on her first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.algorithms.value.q_learning import LocalOptimizerConfig, QLearner, check_q, chosen
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import require
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_network import QPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, UserBatch


@dataclass
class DqnConfig(AlgoConfig):
    """Settings of DQN for people."""

    keeps: ClassVar[bool] = True
    local: ClassVar[bool] = False  # devices know users who come once

    name: str = "dqn"
    hidden: list[int] = field(default_factory=lambda: [128, 128])  # ReLU layers
    lr: float = 1e-4  # of AdamW, at the server
    decay: float = 0.01  # weight decay
    tau: float = 0.005  # share of the new Q in the target at every release
    batch: int | None = 32  # of her own steps, for one row; unset: all of them
    new_users: int = 1  # who come in an acting round
    act_every: int = 1  # rounds for one acting round
    exploration_start: float = 0.9  # chance of a random action at the start
    exploration_end: float = 0.05  # and in the end
    exploration_rounds: float = 50.0  # acting rounds in which what is between falls to 1/e

    def __post_init__(self) -> None:
        super().__post_init__()
        check_q(self)
        ok = self.batch is None or self.batch >= 1
        require("algo.batch", ok, "null or a whole number >= 1", self.batch)
        for key in ("new_users", "act_every"):
            require(
                f"algo.{key}", getattr(self, key) >= 1, "a whole number >= 1", getattr(self, key)
            )
        decay = self.exploration_rounds
        require("algo.exploration_rounds", decay > 0, "> 0", decay)

    def round_steps(self, users: int, steps: int) -> int:
        """See `AlgoConfig.round_steps`: those of the people who come; what is kept is no new step."""
        return math.ceil(self.new_users * steps / self.act_every)

    def people(self, rounds: int) -> int:
        """See `AlgoConfig.people`."""
        return self.new_users * math.ceil(rounds / self.act_every)

    def arrivals(self, round_index: int) -> range:
        """See `AlgoConfig.arrivals`."""
        turn, rest = divmod(round_index, self.act_every)
        return range(0) if rest else range(turn * self.new_users, (turn + 1) * self.new_users)


class Dqn(Algorithm):
    """See the module's text; state tensors: `q_learning`."""

    policy: QPolicy

    def __init__(self, config: DqnConfig, setup: AlgorithmContext):
        self.config, self._setup = config, setup
        self.policy = QPolicy(chosen(setup.spec, config.name), tuple(config.hidden))
        self._learner = QLearner(
            self.policy, LocalOptimizerConfig(config.lr, config.decay, config.tau)
        )

    def blocks(self) -> tuple[Block, ...]:
        """One: the gradient of Q, as one vector."""
        return (Block("q", self.policy.net.size, self._setup.privacy.clip),)

    def unit(self) -> Unit:
        """A user with what they keep."""
        spec = self._setup.spec
        return Unit(
            f"{spec.one_user}: one episode of at most {spec.max_episode_steps} steps, reused in any of the rounds",
            None,
        )

    def notes(self) -> dict[str, str]:
        """When people come is not protected."""
        return {
            "arrival": "a person's place in the order of arrival is given beforehand, and nobody moves up "
            "if she stays away; what she did is kept by her, or by who could run the rounds"
        }

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        return State(0, self._explore(self._learner.init(streams), 0))

    def _explore(self, tensors: dict[str, Tensor], round_index: int) -> dict[str, Tensor]:
        """With the epsilon of a round, which is a function of its public number."""
        config = self.config
        gone = round_index // config.act_every / config.exploration_rounds
        span = config.exploration_start - config.exploration_end
        actor = tensors["actor"].clone()
        actor[:, -1] = config.exploration_end + span * math.exp(-gone)
        return tensors | {"actor": actor}

    def learning_rate(self, round_index: int) -> float:
        """Constant."""
        return self.config.lr

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """The mean gradient over her own steps, for everybody who joined.

        Guarantee: row u is a function of user u's steps, of a random choice among them, and of Q and target.
        """
        batch, weight = self._own_steps(state.round, users, streams)
        replicas, count, size = weight.shape
        flat = Batch(*(x.reshape(replicas, count * size, *x.shape[3:]) for x in batch))
        layers, slopes = self._learner.errors(state.tensors, flat)
        hers = (replicas * count, size, -1)
        slopes = [(d * weight.reshape(replicas, -1, 1).to(d.dtype)).reshape(*hers) for d in slopes]
        rows = self.policy.net.collect([x.reshape(*hers) for x in layers], slopes)
        return Contribution({"q": rows.reshape(replicas, count, -1)}, users.valid)

    def _own_steps(
        self, index: int, users: UserBatch, streams: list[Streams]
    ) -> tuple[Batch, Tensor]:
        """Steps [R, U, B, ...] of every user and their weights [R, U, B], which add up to 1 (or 0)."""
        own = users.mask.sum(-1, keepdim=True)
        discount = self.config.gamma * (~users.terminated).to(users.rewards.dtype)
        told = Batch(users.obs, users.actions, users.rewards, users.next_obs, discount)
        if self.config.batch is None:
            return told, users.mask.to(users.rewards.dtype) / own.clamp_min(1)
        shape = (users.mask.shape[1], self.config.batch)
        chance = torch.stack(
            [torch.rand(*shape, generator=s.torch("local", index)) for s in streams]
        )
        # Her steps come first; rounding up to `own` itself is cut.
        place = torch.minimum((chance * own).long(), (own - 1).clamp_min(0))

        def take(x: Tensor) -> Tensor:
            where = place.reshape(*place.shape, *[1] * (x.dim() - 3))
            return x.gather(2, where.expand(*place.shape, *x.shape[3:]))

        return Batch(*map(take, told)), (own > 0) / torch.full(place.shape, self.config.batch)

    def server(self, state: State, released: Released) -> State:
        """One step along the noised mean, the target's, and the next round's epsilon."""
        tensors = self._learner.descend(dict(state.tensors), released.values["q"])
        return State(state.round + 1, self._explore(tensors, state.round + 1))


ALGORITHM, CONFIG = Dqn, DqnConfig
