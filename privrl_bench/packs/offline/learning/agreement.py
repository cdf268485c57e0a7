"""How often a policy does what public users did, where no simulator shows its worth (`algo=dp_is` does)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, Evaluator, NumbersEvaluation
from privrl_bench.evaluation.objective import AGREEMENT
from privrl_bench.models.policy import Policy
from privrl_bench.packs.offline.datasets.trajectories import Dataset
from privrl_bench.types import EnvSpec

_MOST = 20_000  # steps


class AgreementEvaluator(Evaluator):
    """Compares greedy actions with those of the public users; see `Evaluator`.

    Args:
        data: the dataset.
        spec: of the environment.
        policy: whose parameters are released.
    """

    judges = "policy"
    objective = AGREEMENT
    note = "policies are compared with the public users' actions"

    @classmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """See `Evaluator.of`."""
        users = parts.users
        return BackgroundEvaluator(cls, users.data, users.spec, parts.algo.policy, aside=False)

    def __init__(self, data: Dataset, spec: EnvSpec, policy: Policy):
        flat, obs, actions, left = data.trajectories, [], [], _MOST
        for k in data.public:
            first, last = int(flat.starts[k]), int(flat.starts[k + 1])
            last = min(last, first + left)
            obs.append(flat.observations[first + k : last + k])
            actions.append(flat.actions[first:last])
            left -= last - first
        self._obs, self._actions = np.concatenate(obs), np.concatenate(actions)
        self._spec, self._policy = spec, policy

    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> list[NumbersEvaluation]:
        """See `Evaluator.evaluate`."""
        seen = np.broadcast_to(self._obs, (len(policy_params), *self._obs.shape))
        with torch.inference_mode():
            obs = torch.from_numpy(scaling.obs(seen)).float()
            chosen = self._policy.to_env(self._policy.greedy(policy_params, obs).numpy())
        if self._spec.discrete:
            found = (chosen == self._actions).mean(-1)
        else:
            low, high = self._spec.action_low, self._spec.action_high
            half = (np.asarray(high) - np.asarray(low)) / 2
            found = 1 - (np.abs(chosen - self._actions) / half).mean((-2, -1))
        return [NumbersEvaluation({AGREEMENT.metric: float(value)}) for value in found]


EVALUATOR = AgreementEvaluator
