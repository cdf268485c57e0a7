"""Returns of trivial policies, evaluated as every released policy is."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from privrl_bench.config.compose import compose
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.models.policy import Policy
from privrl_bench.models.trivial_policies import TRIVIAL, RandomPolicy, TrivialPolicy, nothing


def trivial_returns(env: str, episodes: int) -> list[tuple[str, tuple[float, float]]]:
    """(name, (mean return, half width of its 95 % interval)) of each trivial policy."""
    config = replace(compose([f"env={env}"]).env, obs_scaling="none")
    spec = env_spec(config)
    policies: dict[str, Policy] = {}
    if env in TRIVIAL:
        policies[TRIVIAL[env].name] = TrivialPolicy(TRIVIAL[env])
    if not spec.discrete and spec.choices is None:
        policies.setdefault("do nothing", TrivialPolicy(nothing(spec.actions)))
    policies["random"] = RandomPolicy(spec)
    found = []
    for name, policy in policies.items():
        greedy = isinstance(policy, TrivialPolicy)
        evaluator = ReturnEvaluator(config, spec, policy, [Streams(0)], episodes, greedy)
        scaling = SignalScaler(config, 1, episodes, spec.obs_dim, 1.0).frozen()
        (one,) = evaluator.evaluate(torch.zeros(1, 0), 0, scaling)
        evaluator.close()
        found.append((name, (math.nan, math.nan) if one.problem else mean_ci(one.returns)))
    return found
