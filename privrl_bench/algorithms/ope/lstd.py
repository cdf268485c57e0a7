"""LSTD: theta = A^+ b from all users' steps, with importance ratios. Not private.

Source:
    Bradtke and Barto 1996.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.ope.linear_evaluation import (
    WEIGHTINGS,
    EvaluationConfig,
    PooledSums,
    shares,
)
from privrl_bench.errors import require_choice
from privrl_bench.functional.policy_evaluation import moments, solve
from privrl_bench.types import UserBatch


@dataclass
class LstdConfig(EvaluationConfig):
    """Settings of LSTD."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)
    takes_episodes: ClassVar[bool] = True
    full_batch: ClassVar[bool] = True

    name: str = "lstd"
    weighting: str = "step"  # every step counts alike | trajectory: 1 / a person's number of them

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algo.weighting", self.weighting, WEIGHTINGS)


class Lstd(PooledSums):
    """LSTD."""

    def __init__(self, config: LstdConfig, setup: AlgorithmContext):
        super().__init__(config, setup)
        self.config = config

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """See `PooledSums.sums`."""
        share = shares(users.mask, self.config.weighting, whole)
        found = moments(self.steps_of(users, share), self.config.gamma)
        return torch.cat([found.A.flatten(-2), found.b], dim=-1)

    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """See `PooledSums.solution`: the minimum-norm least-squares solution."""
        return solve(A, b)


ALGORITHM, CONFIG = Lstd, LstdConfig
