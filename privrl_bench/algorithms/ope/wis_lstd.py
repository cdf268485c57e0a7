"""WIS-LSTD(lambda): off-policy LSTD by weighted importance sampling. Not private.

Source: Mahmood, van Hasselt and Sutton 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.ope.linear_evaluation import EvaluationConfig, PooledSums, shares
from privrl_bench.errors import require
from privrl_bench.functional.policy_evaluation import solve, wis_lstd
from privrl_bench.types import UserBatch


@dataclass
class WisLstdConfig(EvaluationConfig):
    """Settings of WIS-LSTD."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)
    takes_episodes: ClassVar[bool] = True
    full_batch: ClassVar[bool] = True

    name: str = "wis_lstd"
    trace: float = 0.0  # lambda
    start: float = 1e-6  # A begins at start * I / n

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.trace", 0 <= self.trace <= 1, "in [0, 1]", self.trace)
        require("algo.start", self.start >= 0, ">= 0", self.start)


class WisLstd(PooledSums):
    """See the module's text."""

    def __init__(self, config: WisLstdConfig, setup: AlgorithmContext):
        super().__init__(config, setup)
        self.config = config

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """See `PooledSums.sums`."""
        steps = self.steps_of(users, shares(users.mask, "step", whole))
        a, b = wis_lstd(steps, self.config.gamma, self.config.trace)
        return torch.cat([a.flatten(-2), b], dim=-1)

    def solved(self, A: Tensor, b: Tensor) -> Tensor:
        """With the start of A."""
        start = self.config.start / self._setup.privacy.population
        return solve(A + start * torch.eye(A.shape[-1], dtype=A.dtype), b)


ALGORITHM, CONFIG = WisLstd, WisLstdConfig
