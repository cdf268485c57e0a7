"""DQN with user-level privacy: users keep their own steps, and may participate in any round.

    repeat for every round, their number fixed in advance:
        every `act_every` rounds: `new_users` new users play one episode each, epsilon-greedy
        each of N users participates with probability q = U / N
        each participant: the mean gradient of the temporal-difference loss over their own steps, clipped to
            norm clip
        g <- (sum of gradients + N(0, (z clip)^2 I)) / U
        Q <- AdamW along g;  target <- target + tau (Q - target)

Guarantee: (epsilon, delta) for one user, with all their steps and all rounds that used them, central, under
add-or-remove, as the composition of Poisson-sampled Gaussians over all planned rounds:

1. A user's steps are a function of their own environment and randomness, and of Q and epsilon on arrival, which
   were released. The round of arrival is given by the user's number, fixed in advance: without the user that
   place is empty and no other user moves. So removing a user changes the data of others only through
   releases.
2. Given the releases so far, a row is a function of the user's steps and of a random choice among them: Q,
   target and AdamW's moments are functions of releases; epsilon is a function of the public round number. So
   a round adds a sum of clipped rows, one per user, to which one user contributes one row or (absent) none.
3. Users participate independently with q in every round, drawn by the gate (`plan.members`) from N numbers, a
   public bound; the row of a number without a user is zero. So a round is one Poisson-sampled Gaussian with
   (q, z), whether or not the user has arrived, and each round is accounted, also those before the arrival.
4. The rounds are an adaptive composition, and functions of releases are post-processing.

The private DQN of Doulazmi and Odonnat protects single transitions (`dqn_replay.py`). Noise on transitions is
no bound for a user, whose later steps all depend on the first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privrl_bench.algorithms.base import (
    Algorithm,
    AlgorithmContext,
    AlgorithmTerms,
    each_replica,
    per_user,
    user_draws,
)
from privrl_bench.algorithms.value.actor_critic import Batch, Rates
from privrl_bench.algorithms.value.q_learning import QLearner
from privrl_bench.algorithms.value.value_settings import DqnConfig
from privrl_bench.functional.averaging import averaged
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_network import QPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, UserBatch


class Dqn(Algorithm):
    """DQN with user-level privacy; see the module. State tensors: those of `q_learning`.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    policy: QPolicy

    def __init__(self, config: DqnConfig, context: AlgorithmContext):
        self.config, self._context = config, context
        self.policy = QPolicy(context.spec, tuple(config.hidden))
        self._learner = QLearner(self.policy, Rates(config.lr, config.tau, config.decay))

    def blocks(self) -> tuple[Block, ...]:
        """One block, the gradient of Q."""
        return (Block("q", self.policy.net.size, self._context.privacy.clip),)

    def terms(self) -> AlgorithmTerms:
        """The unit is a user with the steps they keep; the time of arrival is not protected."""
        spec = self._context.spec
        unit = Unit(
            f"{spec.one_user}: one episode of at most {spec.max_episode_steps} steps, "
            "reused in any of the rounds",
            None,
        )
        notes = {
            "arrival": "a user's place in the order of arrival is fixed in advance, and no other user moves "
            "up if they are absent; their steps are stored by them, or by whoever runs the rounds"
        }
        return AlgorithmTerms(unit=unit, notes=notes)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        return State(0, self._explore(self._learner.init(streams), 0))

    def _explore(self, tensors: dict[str, Tensor], round_index: int) -> dict[str, Tensor]:
        """The tensors with the epsilon of a round, a function of its public number."""
        config = self.config
        gone = round_index // config.act_every / config.exploration_rounds
        span = config.exploration_start - config.exploration_end
        actor = tensors["actor"].clone()
        actor[:, -1] = config.exploration_end + span * math.exp(-gone)
        return tensors | {"actor": actor}

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The constant step size."""
        return each_replica(state, lr=self.config.lr)

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """The mean gradient over each participant's own steps.

        Guarantee: row u is a function of user u's steps, of a random choice among them, and of Q and target.
        """
        batch, weight = self._own_steps(state.round, users, streams)
        replicas, count, _ = weight.shape
        q, target = (
            x.repeat_interleave(count, dim=0)
            for x in (state.tensors["actor"][:, :-1], state.tensors["target"])
        )
        losses = self._learner.losses(q.requires_grad_(), target, Batch(*map(per_user, batch)))
        (rows,) = torch.autograd.grad((losses * per_user(weight).to(losses.dtype)).sum(), q)
        return Contribution({"q": rows.reshape(replicas, count, -1)}, users.valid)

    def _own_steps(
        self, index: int, users: UserBatch, streams: list[Streams]
    ) -> tuple[Batch, Tensor]:
        """Steps [R, U, B, ...] of every user, and their weights [R, U, B], which add up to 1 (or 0)."""
        own, recorded = users.mask.sum(-1, keepdim=True), self._transitions(users)
        if self.config.batch is None:
            return recorded, users.mask.to(users.rewards.dtype) / own.clamp_min(1)
        size = self.config.batch
        drawn = user_draws(
            users, streams, "user_update", index, lambda g, n: torch.rand(1, n, size, generator=g)
        )
        chance = torch.cat(drawn)
        # The user's steps come first; the product may round up to `own`, which is clamped.
        place = torch.minimum((chance * own).long(), (own - 1).clamp_min(0))

        def take(x: Tensor) -> Tensor:
            where = place.reshape(*place.shape, *[1] * (x.dim() - 3))
            return x.gather(2, where.expand(*place.shape, *x.shape[3:]))

        return Batch(*map(take, recorded)), (own > 0) / torch.full(place.shape, self.config.batch)

    def _transitions(self, users: UserBatch) -> Batch:
        """The steps [R, U, T, ...] of users as transitions."""
        discount = self.config.gamma * (~users.terminated).to(users.rewards.dtype)
        return Batch(users.obs, users.actions, users.rewards, users.next_obs, discount)

    def server(self, state: State, released: Released) -> State:
        """One step along the noised mean, the update of the target, and the next round's epsilon."""
        tensors = self._learner.descend(dict(state.tensors), released.values["q"])
        tensors = self._explore(tensors, state.round + 1)
        return State(state.round + 1, averaged(tensors, self.config.averaging, state.round))


ALGORITHM = Dqn
