"""What a policy that learns nothing scores, evaluated as every released policy is."""

from __future__ import annotations

from dataclasses import replace

import torch

from privrl_bench.config import compose
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.evaluate import Evaluator
from privrl_bench.nets.trivial import TRIVIAL, TrivialPolicy
from privrl_bench.report.stats import mean_ci
from privrl_bench.streams import Streams


def trivial_return(env: str, episodes: int) -> tuple[str, tuple[float, float]] | None:
    """(name of the rule, (mean return, half width of its 95 % interval)); None without a rule."""
    if env not in TRIVIAL:
        return None
    config = replace(compose([f"env={env}"]).env, obs_scaling="none")
    spec, rule = env_spec(config), TRIVIAL[env]
    evaluator = Evaluator(config, spec, TrivialPolicy(rule), [Streams(0)], episodes, True)
    scaling = SignalScaler(config, 1, episodes, spec.obs_dim, 1.0).frozen()
    (found,) = evaluator.run(torch.zeros(1, 0), 0, scaling)
    evaluator.close()
    return rule.name, mean_ci(found.returns)
