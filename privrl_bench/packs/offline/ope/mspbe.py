"""Errors of released values: the mean squared projected Bellman error (MSPBE), and its reference.

    MSPBE(theta) = (b - A theta)^T C^+ (b - A theta)

with A, b and C over the states that the behavior policy visits, all steps weighted equally. They
come from the tables where an environment has them (then the error is exact), else from simulated
trajectories that belong to no user, the same for all runs (`algo.reference` of them). Only released
values and public data are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import process_of, tables_of
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, Evaluator, NumbersEvaluation
from privrl_bench.evaluation.objective import MSPBE, VALUE
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.ope.linear_evaluation import EvaluationAlgorithm, shares, unpadded
from privrl_bench.packs.offline.ope.policy_evaluation import (
    Moments,
    exact_moments,
    moments,
    mspbe,
    visits_within,
)
from privrl_bench.packs.offline.stored_users import BehaviorCollector
from privrl_bench.types import EnvSpec
from privrl_bench.users.collectors.collector import BatchShape

_REFERENCE_SEED, _REFERENCE_SIDE = 0, 2


@dataclass(frozen=True)
class Reference:
    """Of the behaviour and the evaluated policy.

    Attributes:
        moments: A, b and C of the behaviour.
        reward: average of a step under the evaluated policy.
        exact: they are computed, not sampled.
        start: [d] mean features of the start distribution.
    """

    moments: Moments
    reward: float
    exact: bool
    start: Tensor


def reference(config: EnvConfig, spec: EnvSpec, algo: EvaluationAlgorithm) -> Reference:
    """Of an environment, a behaviour and a target. Raises EnvironmentFailure."""
    gamma = algo.config.gamma
    behaviour = algo.policy.known
    target = algo.target or behaviour
    process, tables = process_of(config), tables_of(config)
    if process is None and (tables is None or not spec.one_hot):
        return _sampled(config, spec, algo)
    if process is not None:  # one action: all policies are the same
        known = (process.visits(), process.transitions, process.rewards, process.start)
        visits, ahead, pay, start = map(torch.as_tensor, known)
    else:
        states = torch.eye(spec.obs_dim, dtype=torch.float64)
        move, reward, start = (torch.as_tensor(x) for x in tables[:3])
        acts, evaluated = behaviour.probabilities(states), target.probabilities(states)
        within = torch.einsum("sa,san->sn", acts, move)
        visits = visits_within(within, start, tables.horizon)
        ahead = torch.einsum("sa,san->sn", evaluated, move)
        pay = torch.einsum("sa,san,san->s", evaluated, move, reward)
    pay = pay / config.reward_unit
    phi = algo.features.phi(torch.eye(len(visits))).double()
    exact = exact_moments(visits, ahead, pay, phi, gamma)
    return Reference(exact, float(visits @ pay / visits.sum()), True, start.double() @ phi)


def _sampled(config: EnvConfig, spec: EnvSpec, algo: EvaluationAlgorithm) -> Reference:
    """From trajectories on streams that no user has."""
    streams = [Streams(_REFERENCE_SEED, _REFERENCE_SIDE)]
    shape = BatchShape(1, 1, spec.max_episode_steps)
    count = algo.config.reference
    simulated = BehaviorCollector(config, spec, algo.policy, streams, count, shape)
    d = algo.features.size
    total = Moments(*(torch.zeros(*s, dtype=torch.float64) for s in ((d, d), (d,), (d, d))))
    steps = reward = episodes = 0.0
    start = torch.zeros(d, dtype=torch.float64)
    for piece in simulated.simulate():
        users = unpadded(piece, 0)
        found = algo.steps_of(users, shares(users.mask, "step", spec.max_episode_steps))
        weights = found.weights * users.valid[..., None]
        one = moments(found._replace(weights=weights), algo.config.gamma)
        total = Moments(*(a + b.double().sum((0, 1)) for a, b in zip(total, one, strict=True)))
        steps += float(weights.double().sum())
        reward += float((weights * found.rho * found.rewards).double().sum())
        start += (found.phi[..., 0, :] * users.valid[..., None]).double().sum((0, 1))
        episodes += float(users.valid.sum())
    moments_of = Moments(*(x / steps for x in total))
    return Reference(moments_of, reward / steps, False, start / episodes)


class MspbeEvaluator(Evaluator):
    """Errors of released values; see `Evaluator`. It has the reference, which takes time to make.

    Args:
        config, spec: the environment.
        algo: features, behavior policy and evaluated policy.
    """

    judges = "values"
    objective = MSPBE
    note = "errors are measured with the environment's tables, or with simulated trajectories of no user"

    @classmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """See `Evaluator.of`."""
        made = (parts.users.config.env, parts.users.spec, parts.algo)
        return BackgroundEvaluator(cls, *made, aside=False)

    @classmethod
    def start(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """See `Evaluator.start`: the error of values of 0, where it was measured."""
        found = [row[MSPBE.metric] for row in rows if MSPBE.metric in row]
        if not found or rows[0]["round"] != 0 or MSPBE.metric not in rows[0]:
            return {}
        learned = len(found) == 1 or found[-1] < found[0]
        name = "start (theta = 0)" if learned else "no better than theta = 0, whose is"
        return {name: {"mean": found[0]}}

    def __init__(self, config: EnvConfig, spec: EnvSpec, algo: EvaluationAlgorithm):
        self._reference = reference(config, spec, algo)
        self._unit = config.reward_unit

    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> list[NumbersEvaluation]:
        """Errors of the values `policy_params` [R, d]; the other arguments change nothing."""
        average = abs(self._reference.reward)
        errors = mspbe(policy_params, self._reference.moments).tolist()
        starts = (policy_params.double() @ self._reference.start * self._unit).tolist()
        return [
            NumbersEvaluation(
                {
                    MSPBE.metric: error,
                    "eval/relative_mspbe": error / average if average > 0 else math.nan,
                    VALUE.metric: start,
                }
            )
            for error, start in zip(errors, starts, strict=True)
        ]


EVALUATOR = MspbeEvaluator
