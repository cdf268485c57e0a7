"""Behaviour cloning with user-level privacy, from recorded trajectories.

    repeat for every round, their number fixed in advance:
        each of N users participates with probability q = U / N
        each participant: the gradient of the mean of -log pi(a | s) over all their steps, clipped to norm clip
        g <- (sum of gradients + N(0, (z clip)^2 I)) / U
        policy <- Adam along g

Guarantee: (epsilon, delta) for one user with all their episodes, central, zero-out: every round is one
Poisson-sampled Gaussian about rows that are a function of one user's steps and of released parameters, and the
rounds are an adaptive composition (`privacy/accounting/`). One user changes a sum by at most `clip`.

Source: Abadi et al. 2016 (DP-SGD), with users in place of examples as McMahan et al. 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, each_replica, per_user
from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import NetPolicy, make_policy
from privrl_bench.packs.offline.learning.learning_settings import DpBcConfig
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch


class DpBc(Algorithm):
    """Behaviour cloning; see the module. State tensors: `actor`, and Adam's `m` and `v`, [R, P].

    Args:
        config: settings of the algorithm.
        context: of the run.
    """

    policy: NetPolicy

    def __init__(self, config: DpBcConfig, context: AlgorithmContext):
        self.config, self._context = config, context
        self.policy = make_policy(context.spec, config.hidden, log_std_init=config.log_std_init)

    def blocks(self) -> tuple[Block, ...]:
        """One block, the gradient."""
        return (Block("gradient", self.policy.size, self._context.privacy.clip),)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: a policy that is nearly uniform."""
        actor = torch.stack([self.policy.init(s.torch("init")) for s in streams])
        return State(
            0, {"actor": actor, "m": torch.zeros_like(actor), "v": torch.zeros_like(actor)}
        )

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The constant step size."""
        return each_replica(state, lr=self.config.lr)

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """The gradient of every participant.

        Guarantee: row u is a function of user u's steps and of released parameters.
        """
        replicas, count, _ = users.mask.shape
        params = state.tensors["actor"].repeat_interleave(count, dim=0).requires_grad_()
        actions = per_user(self._chosen(users.actions))
        logs, _ = self.policy.log_prob(params, per_user(users.obs), actions)
        mask = per_user(users.mask)
        share = mask / mask.sum(-1, keepdim=True).clamp_min(1)
        loss = -(torch.where(mask, logs, 0.0) * share).sum()
        (rows,) = torch.autograd.grad(loss, params)
        return Contribution({"gradient": rows.reshape(replicas, count, -1)}, users.valid)

    def _chosen(self, actions: Tensor) -> Tensor:
        """What the policy would have to choose for recorded actions [..., A]; see `Policy.to_env`."""
        bounds = self.policy.bounds()
        if bounds is None:
            return actions
        centre, half = (torch.from_numpy(x) for x in (bounds.centre, bounds.half))
        return (actions - centre) / half

    def server(self, state: State, released: Released) -> State:
        """One step of Adam along the released mean."""
        tensors = state.tensors
        before = Adam(tensors["m"], tensors["v"], state.round)
        rate = self.config.lr
        actor, after = adam_step(tensors["actor"], released.values["gradient"], before, rate)
        return State(state.round + 1, {"actor": actor, "m": after.m, "v": after.v})


ALGORITHM = DpBc
