"""LSTD: theta = A^+ b from all users' steps, with importance ratios. Not private.

Source:
    Bradtke and Barto 1996.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.packs.offline.ope.linear_evaluation import PooledSums, shares
from privrl_bench.packs.offline.ope.ope_settings import LstdConfig
from privrl_bench.packs.offline.ope.policy_evaluation import moments, solve
from privrl_bench.types import UserBatch


class Lstd(PooledSums):
    """LSTD."""

    def __init__(self, config: LstdConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self.config = config

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """See `PooledSums.sums`."""
        share = shares(users.mask, self.config.weighting, whole)
        found = moments(self.steps_of(users, share), self.config.gamma)
        return torch.cat([found.A.flatten(-2), found.b], dim=-1)

    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """See `PooledSums.solution`: the minimum-norm least-squares solution."""
        return solve(A, b)


ALGORITHM = Lstd
