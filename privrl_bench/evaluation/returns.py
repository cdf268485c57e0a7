"""Evaluation episodes: a released policy in simulated environments that belong to no user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, Evaluator
from privrl_bench.evaluation.objective import RETURN
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.statistics import bootstrap_ci, mean_ci
from privrl_bench.kernels.machine import workers_of
from privrl_bench.models.policy import Policy
from privrl_bench.rollout import begin, lost, rollout
from privrl_bench.types import EnvSpec

_BLOCK = 64  # steps whose noise is drawn at once


@dataclass(frozen=True)
class ReturnEvaluation:
    """One replica's evaluation episodes; see `Evaluation`.

    Attributes:
        returns, lengths: [E].
        more: further metrics of the released policy, by their declared names.
        samples: readable examples of the episodes.
        invalid: episodes with a non-finite reward, observation or action. One of them makes the
            whole evaluation invalid: what remains of that episode is not its return, and a mean of
            the others would leave out the worst.
    """

    returns: np.ndarray
    lengths: np.ndarray
    more: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    invalid: int = 0

    @property
    def value(self) -> float:
        """The mean return; NaN if the evaluation is invalid."""
        return math.nan if self.invalid else float(self.returns.mean())

    @property
    def problem(self) -> str:
        """Why the evaluation is invalid; empty if it is valid."""
        if not self.invalid:
            return ""
        return (
            f"return invalid: {self.invalid} of {len(self.returns)} evaluation episodes had non-finite "
            "rewards, observations or actions"
        )

    def metrics(self) -> dict[str, float]:
        """Statistics over episodes; of an invalid evaluation the number of invalid episodes only."""
        if self.invalid:
            return {"eval/episodes": len(self.returns), "eval/invalid_episodes": self.invalid}
        mean, half = mean_ci(self.returns)
        low, high = bootstrap_ci(self.returns)
        return {
            "eval/return_mean": mean,
            "eval/return_std": float(self.returns.std()),
            "eval/return_ci95": half,
            "eval/return_low": low,
            "eval/return_high": high,
            "eval/length_mean": float(self.lengths.mean()),
            "eval/episodes": len(self.returns),
            **self.more,
        }


class ReturnEvaluator(Evaluator):
    """Whole episodes of released policies on the evaluation streams; see `Evaluator`.

    The environments are simulated and belong to no user.

    Args:
        config, spec, policy, streams: as `SimulatedCollector`.
        episodes: E of each evaluation.
        greedy: take the most likely action.
    """

    judges = "policy"
    objective = RETURN
    note = "evaluation episodes are simulated"
    acts = True

    @classmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """See `Evaluator.of`."""
        users, config = parts.users, parts.users.config
        made = (config.env, users.spec, parts.algo.policy, parts.streams, config.eval.episodes)
        greedy = config.eval.policy == "greedy"
        return BackgroundEvaluator(cls, *made, greedy, aside=workers_of(config) > 1)

    def __init__(
        self,
        config: EnvConfig,
        spec: EnvSpec,
        policy: Policy,
        streams: list[Streams],
        episodes: int,
        greedy: bool,
    ):
        self._spec = spec
        self._policy = policy
        self._streams = streams
        self._episodes = episodes
        self._greedy = greedy
        self._slots = make_slots(config, len(streams) * episodes)

    def of_policy(self, policy: Policy, greedy: bool) -> ReturnEvaluator:
        """The same episodes, of another policy."""
        found = copy(self)
        found._policy, found._greedy = policy, greedy
        return found

    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> list[ReturnEvaluation]:
        """E episodes of each replica; those `ended` have none, and returns of 0."""
        replicas, episodes = len(self._streams), self._episodes
        seeds = [
            s.episode_seed("eval_env", round_index, e)
            for s in self._streams
            for e in range(episodes)
        ]
        declared = self._spec.users is not None
        raw = begin(self._slots, seeds, declared).reshape(replicas, episodes, -1)
        going = np.ones((replicas, episodes), dtype=bool)
        going[list(ended)] = False
        draws = [s.torch("eval_policy", round_index) for s in self._streams]

        def drawn() -> Tensor | None:
            """Noise of the next steps, _BLOCK of them."""
            if self._greedy and not getattr(self._policy, "by_step", False):
                return None
            return torch.stack([self._policy.draw(g, _BLOCK, episodes) for g in draws], dim=1)

        returns = np.zeros((replicas, episodes))
        lengths = np.zeros((replicas, episodes), dtype=np.int64)
        broken = lost(raw, going)
        now = torch.zeros(replicas, episodes, self._spec.obs_dim)
        noise: Tensor | None = None

        def act(_: np.ndarray, t: int) -> np.ndarray:
            nonlocal noise
            if t % _BLOCK == 0:
                noise = drawn()
            now.copy_(torch.from_numpy(scaling.obs(raw)))
            if noise is None:
                return self._policy.greedy(policy_params, now).numpy()
            return sample(now, noise[t % _BLOCK]).numpy()

        with torch.inference_mode():
            sample = self._policy.sampler(policy_params)
            for step in rollout(
                *(self._slots, raw, going & ~broken, act, self._spec.max_episode_steps),
                to_env=self._policy.to_env,
            ):
                broken |= step.broken
                returns += step.rewards
                lengths += step.acted
        return _evaluations(returns, lengths, broken)

    def close(self) -> None:
        """Free the environments."""
        self._slots.close()


def _evaluations(
    returns: np.ndarray, lengths: np.ndarray, broken: np.ndarray
) -> list[ReturnEvaluation]:
    """One of each replica, from arrays [R, E]. Finite rewards can have an infinite sum."""
    invalid = (broken | ~np.isfinite(returns)).sum(axis=1)
    return [
        ReturnEvaluation(mine, steps, invalid=int(count))
        for mine, steps, count in zip(returns, lengths, invalid, strict=True)
    ]


EVALUATOR = ReturnEvaluator
