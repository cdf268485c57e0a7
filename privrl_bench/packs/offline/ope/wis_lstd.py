"""WIS-LSTD(lambda): off-policy LSTD with weighted importance sampling. Not private.

Source:
    Mahmood, van Hasselt and Sutton 2014.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.packs.offline.ope.linear_evaluation import PooledSums, shares
from privrl_bench.packs.offline.ope.ope_settings import WisLstdConfig
from privrl_bench.packs.offline.ope.policy_evaluation import solve, wis_lstd
from privrl_bench.types import UserBatch


class WisLstd(PooledSums):
    """WIS-LSTD."""

    def __init__(self, config: WisLstdConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self.config = config

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """See `PooledSums.sums`."""
        steps = self.steps_of(users, shares(users.mask, "step", whole))
        a, b = wis_lstd(steps, self.config.gamma, self.config.trace)
        return torch.cat([a.flatten(-2), b], dim=-1)

    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """See `PooledSums.solution`; A includes its initial value."""
        start = self.config.start / self._context.privacy.population
        return solve(A + start * torch.eye(A.shape[-1], dtype=A.dtype), b)


ALGORITHM = WisLstd
