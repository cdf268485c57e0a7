"""What DPPG-L2 and DPPG-KL share: log-linear policy gradient whose clip comes from a trust region.

    repeat for every round, their number fixed in advance:
        one user plays an episode with the released policy
        g <- mean over her steps of advantage * feature
        S <- largest clip for which the noised step stays within the trust region (`dppg_l2`, `dppg_kl`)
        theta <- theta + eta (g clipped at S + N(0, z^2 S^2 I))

S depends on public and released numbers only. It differs from round to round, so a row is g clip / S, clipped
at the constant `privacy.clip`, and the server multiplies what was released by eta S / clip.

Source: "Differentially Private Policy Gradient" (Rio, Barlier, Colin), algorithm 1 and section 4; details
of its authors' code: the raw feature where the score has the feature minus its mean
(`algo.score=true`), and a linear baseline learned over all episodes without noise
(`algo.baseline=shared`; it leaks, the default is none).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, require, require_choice
from privrl_bench.functional.discounted_returns import gae
from privrl_bench.functional.rng import Streams
from privrl_bench.models.loglinear import FEATURES, LogLinearPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

SHARED_BASELINE = "shared baseline"


@dataclass
class LogLinearConfig(AlgoConfig):
    """Settings of both."""

    whole_episodes: ClassVar[bool] = True
    local: ClassVar[bool] = False

    lr: float = 2.4  # eta of the first rounds
    lr_division: float = 5.0  # eta is divided by this
    lr_every: int = 50  # after every so many rounds
    lr_floor: float = 0.055  # and never falls below this
    alpha: float = 3.5  # radius of the trust region
    confidence: float = 0.6  # 1 - beta, chance that a step stays in it
    features: str = "joined"  # observation and action side by side | pairs: of both
    score: bool = (
        False  # true: the score of the policy | false: the raw feature, as the authors' code
    )
    baseline: str = "none"  # none | shared: linear, learned over all episodes without noise, leaks
    baseline_lr: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("lr", "lr_floor", "alpha", "baseline_lr"):
            require(f"algo.{key}", getattr(self, key) > 0, "> 0", getattr(self, key))
        require("algo.lr_division", self.lr_division >= 1, ">= 1", self.lr_division)
        require("algo.lr_every", self.lr_every >= 1, "a whole number >= 1", self.lr_every)
        ok = 0 < self.confidence < 1
        require("algo.confidence", ok, "between 0 and 1", self.confidence)
        require_choice("algo.features", self.features, FEATURES)
        require_choice("algo.baseline", self.baseline, ("none", "shared"))


class LogLinear(Algorithm):
    """See the module's text. `radius` is what the two differ in."""

    policy: LogLinearPolicy

    def __init__(self, config: LogLinearConfig, setup: AlgorithmContext):
        if not setup.spec.discrete:
            raise ConfigError("env", f"algo={config.name} needs a choice of actions")
        self.config = config
        self.policy = LogLinearPolicy(setup.spec, config.features)
        self._setup = setup
        self._z = torch.tensor(setup.privacy.z, dtype=torch.float64)

    @abstractmethod
    def radius(self, state: State) -> Tensor:
        """[R] clip S of the round that begins with this state, in the units of a gradient."""

    def blocks(self) -> tuple[Block, ...]:
        """The gradient, in units of the round's clip."""
        return (Block("actor", self.policy.size, self._setup.privacy.clip),)

    def caveats(self) -> dict[str, str]:
        """The shared baseline."""
        if self.config.baseline == "none":
            return {}
        return {
            SHARED_BASELINE: "it learns from everybody without noise and steers later gradients"
        }

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        actors = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        tensors = {"actor": actors}
        if self.config.baseline == "shared":
            tensors["baseline"] = torch.zeros_like(actors)
        return State(0, tensors)

    def learning_rate(self, round_index: int) -> float:
        """eta of a round."""
        config = self.config
        try:
            divisor = config.lr_division ** (round_index // config.lr_every)
        except OverflowError:  # after so many rounds
            divisor = math.inf
        return max(config.lr / divisor, config.lr_floor)

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One gradient for each user.

        Guarantee: row u depends on user u's data and on released parameters only (with a shared
        baseline: also on what it learned from earlier users).
        """
        zeros = torch.zeros_like(users.rewards)
        returns = gae(users.rewards, zeros, zeros, users.done, users.done, self.config.gamma, 1.0)
        every = self.policy.features(users.obs)  # [R, U, T, A, d]
        index = users.actions.long()[..., None, None].expand(
            *users.actions.shape, 1, every.shape[-1]
        )
        feature = every.gather(-2, index).squeeze(-2)
        weight = users.mask.to(feature.dtype)
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(1.0)
        advantages, bypass = returns, {}
        if self.config.baseline == "shared":
            error = returns - torch.einsum("rutd,rd->rut", feature, state.tensors["baseline"])
            advantages = error
            step = torch.einsum("rut,rutd->rud", weight * error, feature)
            step = torch.where(users.valid[..., None], step, 0.0).sum(1) / self._setup.privacy.users
            bypass = {SHARED_BASELINE: {"step": step}}
        flat = users.obs.flatten(1, 2)
        logits = self.policy.logits(state.tensors["actor"], flat).reshape(*users.mask.shape, -1)
        if self.config.score:
            feature = feature - torch.einsum("ruta,rutad->rutd", logits.exp(), every)
        gradient = torch.einsum("rut,rutd->rud", weight * advantages, feature)
        units = (self._setup.privacy.clip / self.radius(state)).to(gradient.dtype)
        rows = {"actor": gradient * units[:, None, None]} | self.further_rows(feature, weight)
        entropy = (-(logits.exp() * logits).sum(-1) * weight).sum(-1).mean(-1)
        return Contribution(
            rows, users.valid, bypass, [{"train/entropy": float(x)} for x in entropy]
        )

    def further_rows(self, feature: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Other blocks, from features [R, U, T, d] and weights [R, U, T] that sum to 1."""
        return {}

    def server(self, state: State, released: Released) -> State:
        """One gradient step."""
        tensors = dict(state.tensors)
        step = self.learning_rate(state.round) * self.radius(state) / self._setup.privacy.clip
        tensors["actor"] = state.tensors["actor"] + (
            step.to(torch.float32)[:, None] * released.values["actor"]
        )
        if "baseline" in tensors:
            learned = released.bypass[SHARED_BASELINE]["step"]
            tensors["baseline"] = tensors["baseline"] + self.config.baseline_lr * learned
        return State(state.round + 1, tensors)
