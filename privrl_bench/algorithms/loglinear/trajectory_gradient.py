"""Log-linear policy gradient with the clip norm of a trust region; base of DPPG-L2 and DPPG-KL.

    for every round, their number fixed in advance:
        one user acts for an episode with the released policy
        g <- mean over the user's steps of advantage * feature
        S <- largest clip norm for which the noised step stays within the trust region
        theta <- theta + eta (g clipped to S + N(0, z^2 S^2 I))

S depends on public and released values only. It changes between rounds, so a row is g clip / S, clipped to the
constant `privacy.clip`, and the server multiplies the release by eta S / clip.

Source:
    "Differentially Private Policy Gradient" (Rio, Barlier, Colin), algorithm 1 and section 4. From the
    authors' code: the raw feature instead of the score, which subtracts its mean (`algo.score=true`), and a
    linear baseline learned over all episodes without noise (`algo.baseline=shared`; not private, off by
    default).
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms, each_replica
from privrl_bench.algorithms.loglinear.loglinear_settings import LogLinearConfig
from privrl_bench.functional.discounted_returns import gae
from privrl_bench.functional.rng import Streams
from privrl_bench.models.loglinear import LogLinearPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

SHARED_BASELINE = "shared baseline"


class LogLinear(Algorithm):
    """Base class; subclasses define `radius`, the clip norm of a round."""

    policy: LogLinearPolicy

    def __init__(self, config: LogLinearConfig, context: AlgorithmContext):
        self.config = config
        spec = context.spec
        self.policy = LogLinearPolicy(spec, config.features)
        self._context = context

    @property
    def z(self) -> Tensor:
        """[R] noise multipliers."""
        return torch.tensor(self._context.schedule.z, dtype=torch.float64)

    @abstractmethod
    def radius(self, state: State) -> Tensor:
        """Return the clip norms S [R] of the round that starts with this state, in gradient units."""

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: the gradient, in units of the round's clip norm."""
        return (Block("actor", self.policy.size, self._context.privacy.clip),)

    def terms(self) -> AlgorithmTerms:
        """See `Algorithm.terms`: a shared baseline is a caveat."""
        if self.config.baseline == "none":
            return AlgorithmTerms()
        why = "it learns from all users without noise and affects later gradients"
        return AlgorithmTerms(caveats={SHARED_BASELINE: why})

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        actors = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        tensors = {"actor": actors}
        if self.config.baseline == "shared":
            tensors["baseline"] = torch.zeros_like(actors)
        return State(0, tensors)

    def learning_rate(self, round_index: int) -> float:
        """Return eta of a round."""
        config = self.config
        try:
            divisor = config.lr_division ** (round_index // config.lr_every)
        except OverflowError:  # after very many rounds
            divisor = math.inf
        return max(config.lr / divisor, config.lr_floor)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """See `learning_rate`."""
        return each_replica(state, lr=self.learning_rate(state.round - 1))

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: one gradient per user.

        Guarantee:
            Row u depends on user u's data and on released parameters only (with a shared baseline: also on
            earlier users' data).
        """
        zeros = torch.zeros_like(users.rewards)
        returns = gae(users.rewards, zeros, zeros, users.done, users.done, self.config.gamma, 1.0)
        every, feature = self.features_of(users)
        weight = users.mask.to(feature.dtype)
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(1.0)
        advantages, bypass = returns, {}
        if self.config.baseline == "shared":
            error = returns - torch.einsum("rutd,rd->rut", feature, state.tensors["baseline"])
            advantages = error
            step = torch.einsum("rut,rutd->rud", weight * error, feature)
            step = (
                torch.where(users.valid[..., None], step, 0.0).sum(1) / self._context.privacy.users
            )
            bypass = {SHARED_BASELINE: {"step": step}}
        flat = users.obs.flatten(1, 2)
        logits = self.policy.logits(state.tensors["actor"], flat).reshape(*users.mask.shape, -1)
        if self.config.score:
            feature = feature - torch.einsum("ruta,rutad->rutd", logits.exp(), every)
        gradient = torch.einsum("rut,rutd->rud", weight * advantages, feature)
        units = (self._context.privacy.clip / self.radius(state)).to(gradient.dtype)
        rows = {"actor": gradient * units[:, None, None]} | self.further_rows(feature, weight)
        entropy = (-(logits.exp() * logits).sum(-1) * weight).sum(-1).mean(-1)
        return Contribution(
            rows, users.valid, bypass, [{"train/entropy": float(x)} for x in entropy]
        )

    def features_of(self, users: UserBatch) -> tuple[Tensor, Tensor]:
        """Return the features of all actions [R, U, T, A, d] and of those taken [R, U, T, d]."""
        every = self.policy.features(users.obs)
        return every, every.take_along_dim(users.actions.long()[..., None, None], -2).squeeze(-2)

    def further_rows(self, feature: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Return rows of further blocks from features [R, U, T, d] and weights [R, U, T] that sum to 1."""
        return {}

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: one gradient step."""
        tensors = dict(state.tensors)
        step = self.learning_rate(state.round) * self.radius(state) / self._context.privacy.clip
        tensors["actor"] = state.tensors["actor"] + (
            step.to(torch.float32)[:, None] * released.values["actor"]
        )
        if "baseline" in tensors:
            learned = released.bypass[SHARED_BASELINE]["step"]
            tensors["baseline"] = tensors["baseline"] + self.config.baseline_lr * learned
        return State(state.round + 1, tensors)
