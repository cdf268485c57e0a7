"""Returns of policies without learning, evaluated as every released policy is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import torch

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.scaling import FrozenScaling, SignalScaler
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.statistics import bootstrap_ci
from privrl_bench.models.policy import Policy
from privrl_bench.models.trivial_policies import TRIVIAL, RandomPolicy, TrivialPolicy, nothing
from privrl_bench.types import EnvSpec

_TOGETHER, _PARTS = 2, 10  # episodes at a time, and how often
_REFERENCES = 2  # see `Streams.side`
_known: dict[str, dict[str, dict[str, float]]] = {}  # by the settings: a sweep measures them once


class Episodes(NamedTuple):
    """Returns and lengths [E] of whole episodes."""

    returns: np.ndarray
    lengths: np.ndarray


def references(config: EnvConfig, spec: EnvSpec, steps: int) -> dict[str, dict[str, float]]:
    """Mean returns of the random policy and of the simple rule of an environment, by name.

    20 episodes each on streams of their own, or the first of them that use up `steps`, at least two. The
    episodes are simulated and belong to no user. A policy is left out where an episode is invalid or fails.

    Args:
        config: of a run; its scaling does not matter.
        spec: its public facts.
        steps: that the episodes of one policy may take, up to the last two of them.

    Returns:
        name -> mean, low and high of a 95 % bootstrap interval, and episodes.
    """
    key = json.dumps([asdict(config), steps], sort_keys=True, default=str)
    if key not in _known:
        raw = replace(config, obs_scaling="none")
        found = {}
        streams = Streams(0, _REFERENCES)
        for name, played in trivial_episodes(raw, spec, streams, _TOGETHER, _PARTS, steps):
            if played is not None:
                low, high = bootstrap_ci(played.returns)
                mean, count = float(played.returns.mean()), float(len(played.returns))
                found[name] = {"mean": mean, "low": low, "high": high, "episodes": count}
        _known[key] = found
    return {name: dict(one) for name, one in _known[key].items()}


def _policies(config: EnvConfig, spec: EnvSpec) -> dict[str, Policy]:
    """The rule of an environment, no action at all where that is possible, and random actions."""
    policies: dict[str, Policy] = {}
    if config.name in TRIVIAL and not config.wrappers:  # which may change observations and actions
        policies[TRIVIAL[config.name].name] = TrivialPolicy(TRIVIAL[config.name])
    low, high = spec.action_low, spec.action_high
    if not spec.discrete and spec.choices is None and low is not None and high is not None:
        if bool((low <= 0).all() and (high >= 0).all()):
            policies.setdefault("do nothing", TrivialPolicy(nothing(spec.actions)))
        if not np.isfinite([*low, *high]).all():
            return policies  # nothing is uniform on an unbounded box
    return policies | {"random": RandomPolicy(spec)}


def trivial_episodes(
    config: EnvConfig,
    spec: EnvSpec,
    streams: Streams,
    episodes: int,
    parts: int,
    steps: float = math.inf,
) -> Iterator[tuple[str, Episodes | None]]:
    """Each trivial policy with its episodes: up to `parts` times so many, until `steps` are used.

    All play in one set of slots. None: an episode is invalid or fails.
    """
    policies = _policies(config, spec)
    first = next(iter(policies.values()), None)
    if first is None:
        return
    every = ReturnEvaluator(config, spec, first, [streams], episodes, True)
    scaling = SignalScaler(config, 1, episodes, spec.obs_dim, 1.0).frozen()
    try:
        for name, policy in policies.items():
            one = every.of_policy(policy, isinstance(policy, TrivialPolicy))
            try:
                yield name, _episodes(one, scaling, parts, steps)
            except EnvironmentFailure:
                yield name, None
    finally:
        every.close()


def _episodes(
    evaluator: ReturnEvaluator, scaling: FrozenScaling, parts: int, steps: float
) -> Episodes | None:
    """See `trivial_episodes`. Raises EnvironmentFailure."""
    returns, lengths = np.empty(0), np.empty(0)
    for part in range(parts):
        if part and lengths.sum() >= steps:
            break
        (one,) = evaluator.evaluate(torch.zeros(1, 0), part, scaling)
        if one.problem:
            return None
        returns, lengths = np.append(returns, one.returns), np.append(lengths, one.lengths)
    return Episodes(returns, lengths)
