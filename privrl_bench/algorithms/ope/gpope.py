"""GPOPE: gradient-perturbed off-policy evaluation, GTD2 as a saddle point under noise.

    theta, w <- 0
    repeat for every round k, their number fixed in advance:
        draw one of n people
        g <- (-A^T w, A theta - b + C w) of her whole trajectory, kept in a ball of radius clip
        (theta, w) <- (theta, w) - beta_k (g + N(0, (z clip)^2 I)),  beta_k = lr for theta, dual_lr for w

Guarantee: (epsilon, delta) for one person's trajectory, central, replace-one, n exact and public: in every
round one of n drawn uniformly, Gaussian noise; rows differ by up to 2 clips (`privacy/accounting/single_user.py`).
The paper's proof reduces to one unit of distance where clipped gradients differ by two.

Source: Xie, Thomas and Miklau 2019, algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.ope.linear_evaluation import (
    WEIGHTINGS,
    EvaluationAlgorithm,
    EvaluationConfig,
    shares,
    taken,
)
from privrl_bench.errors import require, require_choice
from privrl_bench.functional.policy_evaluation import primal_dual_terms
from privrl_bench.functional.rng import Streams
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch


@dataclass
class GpopeConfig(EvaluationConfig):
    """Settings of GPOPE."""

    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)

    name: str = "gpope"
    weighting: str = "trajectory"  # a person's steps count 1 / her number of them | step: 1 / T
    lr: float = 1.0  # beta of theta
    dual_lr: float | None = None  # beta of w; unset: the same
    step: str = "constant"  # constant | diminishing: beta / (1 + k / halving)
    halving: float = 1000.0  # rounds until a diminishing step is half

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algo.weighting", self.weighting, WEIGHTINGS)
        require_choice("algo.step", self.step, ("constant", "diminishing"))
        for key in ("lr", "halving"):
            value = getattr(self, key)
            require(f"algo.{key}", math.isfinite(value) and value > 0, "> 0", value)
        ok = self.dual_lr is None or (math.isfinite(self.dual_lr) and self.dual_lr > 0)
        require("algo.dual_lr", ok, "null or > 0", self.dual_lr)


class Gpope(EvaluationAlgorithm):
    """See the module's text. State tensors: `theta` and `w`, [R, d]."""

    def __init__(self, config: GpopeConfig, setup: AlgorithmContext):
        super().__init__(config, setup)
        self.config = config

    def blocks(self) -> tuple[Block, ...]:
        """The stacked gradient, clipped as one vector."""
        return (Block("gradient", 2 * self.features.size, self._setup.clip),)

    def init(self, streams: list[Streams]) -> State:
        """Zeros; the dual starts at its best for theta = 0 without data."""
        state = super().init(streams)
        state.tensors["w"] = torch.zeros_like(state.tensors["theta"])
        return state

    def learning_rate(self, round_index: int) -> float:
        """beta_k of theta."""
        gone = round_index / self.config.halving if self.config.step == "diminishing" else 0.0
        return self.config.lr / (1.0 + gone)

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """The stacked gradient of everybody's whole trajectory.

        Guarantee: row u is a function of user u's trajectory, of theta and w, and of known policies.
        """
        replicas, count, whole = users.mask.shape
        share = shares(users.mask, self.config.weighting, whole)[users.mask]
        lengths = users.mask.sum(-1).flatten()
        # Steps of one person after the other's: padding to T would be most of the work.
        place = torch.arange(replicas * count).repeat_interleave(lengths) // count  # of [R]
        theta, w = (state.tensors[name][place] for name in ("theta", "w"))
        steps = self.steps_of(taken(users), share)
        parts = primal_dual_terms(steps, self.config.gamma, theta, w).split(lengths.tolist())
        rows = torch.stack([part.sum(0) for part in parts]).reshape(replicas, count, -1)
        return Contribution({"gradient": rows}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """Down in theta, and down along the negative gradient in w."""
        primal, dual = released.values["gradient"].chunk(2, dim=-1)
        beta = self.learning_rate(state.round)
        ratio = 1.0 if self.config.dual_lr is None else self.config.dual_lr / self.config.lr
        theta = state.tensors["theta"] - beta * primal
        w = state.tensors["w"] - beta * ratio * dual
        return State(state.round + 1, {"theta": theta, "w": w})


ALGORITHM, CONFIG = Gpope, GpopeConfig
