"""GPOPE: off-policy evaluation by gradient perturbation, GTD2 as a saddle point problem with noise.

    theta, w <- 0
    for every round k, their number fixed in advance:
        draw one of n users (or, with privacy.sampling=fixed, take the next U of the list; g is then their mean)
        g <- (-A^T w, A theta - b + C w) of the user's trajectory, clipped to norm clip
        (theta, w) <- (theta, w) - beta_k (g + N(0, (z clip)^2 I)),  beta_k = lr for theta, dual_lr for w

Guarantee:
    (epsilon, delta) for one user's trajectory, central, replace-one, with n exact and public: every round
    draws one of n uniformly and adds Gaussian noise; rows differ by up to 2 clips
    (`privacy/accounting/single_user.py`). The paper's proof assumes a distance of one clip, but clipped
    gradients can differ by two. With privacy.sampling=fixed every user is in one round: epsilon is that of one
    Gaussian mechanism, without amplification.

Source:
    Xie, Thomas and Miklau 2019, algorithm 1.
"""

from __future__ import annotations

import torch

from privrl_bench.algorithms.base import AlgorithmContext, each_replica
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.ope.linear_evaluation import EvaluationAlgorithm, flat_steps, shares
from privrl_bench.packs.offline.ope.ope_settings import GpopeConfig
from privrl_bench.packs.offline.ope.policy_evaluation import primal_dual_terms
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch


class Gpope(EvaluationAlgorithm):
    """GPOPE. State tensors: `theta` and `w`, [R, d]."""

    def __init__(self, config: GpopeConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self.config = config

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: the gradient in (theta, w), clipped as one vector."""
        return (Block("gradient", 2 * self.features.size, self._context.privacy.clip),)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: zeros."""
        state = super().init(streams)
        state.tensors["w"] = torch.zeros_like(state.tensors["theta"])
        return state

    def learning_rate(self, round_index: int) -> float:
        """Return beta_k of theta."""
        gone = round_index / self.config.halving if self.config.step == "diminishing" else 0.0
        return self.config.lr / (1.0 + gone)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """See `learning_rate`."""
        return each_replica(state, lr=self.learning_rate(state.round - 1))

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: the gradient of every user's trajectory.

        Guarantee:
            Row u is a function of user u's trajectory, theta, w and public policies.
        """
        replicas, count, whole = users.mask.shape
        share = shares(users.mask, self.config.weighting, whole)[users.mask]
        lengths = users.mask.sum(-1).flatten()
        # Users' steps are concatenated: padding to T would dominate the cost.
        place = (
            torch.arange(replicas * count).repeat_interleave(lengths) // count
        )  # replica of each user
        theta, w = (state.tensors[name][place] for name in ("theta", "w"))
        steps = self.steps_of(flat_steps(users), share)
        parts = primal_dual_terms(steps, self.config.gamma, theta, w).split(lengths.tolist())
        rows = torch.stack([part.sum(0) for part in parts]).reshape(replicas, count, -1)
        return Contribution({"gradient": rows}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: descent in theta, ascent in w."""
        primal, dual = released.values["gradient"].chunk(2, dim=-1)
        beta = self.learning_rate(state.round)
        ratio = 1.0 if self.config.dual_lr is None else self.config.dual_lr / self.config.lr
        theta = state.tensors["theta"] - beta * primal
        w = state.tensors["w"] - beta * ratio * dual
        return State(state.round + 1, {"theta": theta, "w": w})


ALGORITHM = Gpope
