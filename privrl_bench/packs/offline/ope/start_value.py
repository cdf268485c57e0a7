"""The value of the states in which the public users began, where no simulator gives the error of a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, Evaluator, NumbersEvaluation
from privrl_bench.evaluation.objective import VALUE


class StartValueEvaluator(Evaluator):
    """phi . theta, phi the mean features of the public users' first states; see `Evaluator`."""

    judges = "values"
    objective = VALUE
    note = "a value is that of the states in which the public users began"

    @classmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """See `Evaluator.of`."""
        data = parts.users.data
        flat = data.trajectories
        first = torch.from_numpy(flat.observations[flat.starts[data.public] + data.public])
        start = parts.algo.features.phi(first).mean(0) * parts.users.config.env.reward_unit
        return BackgroundEvaluator(cls, start, aside=False)

    def __init__(self, start: Tensor):
        self._start = start

    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> list[NumbersEvaluation]:
        """See `Evaluator.evaluate`: of theta [R, d]."""
        return [
            NumbersEvaluation({VALUE.metric: x}) for x in (policy_params @ self._start).tolist()
        ]


EVALUATOR = StartValueEvaluator
