"""Errors of released values: the mean squared projected Bellman error (MSPBE), and its reference.

    MSPBE(theta) = (b - A theta)^T C^+ (b - A theta)

with A, b and C of the states that the behaviour visits, every step counting alike. They come from the tables
where an environment has them (then the number is exact), else from simulated trajectories that are nobody's,
the same for all runs (`algo.reference` of them). Computed from released values and public things only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privrl_bench.algorithms.ope.linear_evaluation import EvaluationAlgorithm, shares, unpadded
from privrl_bench.collectors.behavior import BehaviorCollector
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import process_of, tables_of
from privrl_bench.evaluation.objective import MSPBE
from privrl_bench.functional.policy_evaluation import (
    Moments,
    exact_moments,
    moments,
    mspbe,
    visits_within,
)
from privrl_bench.functional.rng import Streams
from privrl_bench.types import EnvSpec

_REFERENCE_SEED, _REFERENCE_SIDE = 0, 2


@dataclass(frozen=True)
class ValueEvaluation:
    """The error of one replica's values.

    Attributes:
        mspbe: in squared units of the value.
        relative: mspbe / |average reward of the evaluated policy|; nan if that is 0.
    """

    mspbe: float
    relative: float

    @property
    def value(self) -> float:
        """What a run is judged by; NaN if the evaluation is invalid."""
        return math.nan if self.problem else self.mspbe

    @property
    def problem(self) -> str:
        """Why the evaluation is invalid; empty if it is valid."""
        return "" if math.isfinite(self.mspbe) else "MSPBE invalid: it is not finite"

    def row(self) -> dict[str, float]:
        """Its metrics; none if it is invalid."""
        if self.problem:
            return {}
        return {MSPBE.metric: self.mspbe, "eval/relative_mspbe": self.relative}


@dataclass(frozen=True)
class Reference:
    """A, b and C of the behaviour, and the average reward of a step under the evaluated policy."""

    moments: Moments
    reward: float
    exact: bool


def reference(config: EnvConfig, spec: EnvSpec, algo: EvaluationAlgorithm) -> Reference:
    """Of an environment, a behaviour and a target. Raises EnvironmentFailure."""
    gamma = algo.settings.gamma
    scale = 1.0 if config.reward_scaling == "none" else config.reward_scale
    behaviour = algo.policy.known
    target = algo.target or behaviour
    process, tables = process_of(config), tables_of(config)
    if process is None and (tables is None or not spec.one_hot):
        return _sampled(config, spec, algo)
    if process is not None:  # one action: all policies are the same
        visits, ahead, pay = (
            torch.as_tensor(x) for x in (process.visits(), process.transitions, process.rewards)
        )
    else:
        states = torch.eye(spec.obs_dim, dtype=torch.float64)
        move, reward, start = (torch.as_tensor(x) for x in tables[:3])
        acts, evaluated = behaviour.probabilities(states), target.probabilities(states)
        within = torch.einsum("sa,san->sn", acts, move)
        visits = visits_within(within, start, tables.horizon)
        ahead = torch.einsum("sa,san->sn", evaluated, move)
        pay = torch.einsum("sa,san,san->s", evaluated, move, reward)
    pay = scale * pay
    phi = algo.features.phi(torch.eye(len(visits))).double()
    exact = exact_moments(visits, ahead, pay, phi, gamma)
    return Reference(exact, float(visits @ pay / visits.sum()), True)


def _sampled(config: EnvConfig, spec: EnvSpec, algo: EvaluationAlgorithm) -> Reference:
    """From trajectories on streams that nobody has."""
    streams = [Streams(_REFERENCE_SEED, _REFERENCE_SIDE)]
    count = algo.settings.reference
    played = BehaviorCollector(config, spec, algo.policy, streams, count, 1, spec.max_episode_steps)
    d = algo.features.size
    total = Moments(*(torch.zeros(*s, dtype=torch.float64) for s in ((d, d), (d,), (d, d))))
    steps = reward = 0.0
    for piece in played.pieces():
        users = unpadded(piece, 0)
        batch = algo.steps_of(users, shares(users.mask, "step", spec.max_episode_steps))
        weights = batch.weights * users.valid[..., None]
        one = moments(batch._replace(weights=weights), algo.settings.gamma)
        total = Moments(*(a + b.double().sum((0, 1)) for a, b in zip(total, one, strict=True)))
        steps += float(weights.double().sum())
        reward += float((weights * batch.rho * batch.rewards).double().sum())
    return Reference(Moments(*(x / steps for x in total)), reward / steps, False)


class ValueEvaluations:
    """By the interface of `evaluate.Evaluations`; the reference is made when it is first needed."""

    def __init__(self, config: EnvConfig, spec: EnvSpec, algo: EvaluationAlgorithm):
        self._arguments = (config, spec, algo)
        self._reference: Reference | None = None
        self._found: list[ValueEvaluation] | None = None

    def begin(
        self, actor: Tensor, round_index: int, scaling: Any, over: Sequence[int] = ()
    ) -> None:
        """Errors of `actor` [R, d]; the other arguments change nothing. Raises EnvironmentFailure."""
        if self._found is not None:
            raise RuntimeError("an evaluation was begun before the last one was taken")
        if self._reference is None:
            self._reference = reference(*self._arguments)
        average = abs(self._reference.reward)
        self._found = [
            ValueEvaluation(error, error / average if average > 0 else float("nan"))
            for error in mspbe(actor, self._reference.moments).tolist()
        ]

    def take(self, wait: bool = True) -> list[ValueEvaluation] | None:
        """What was begun, or None."""
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Nothing to free."""
