"""Which collector and which evaluator a run has, by name.

A new collector is a class with the interface of `collectors.collector.Collector` and a factory in
`COLLECTORS`; a new evaluator one with that of `evaluation.evaluator.Evaluator` and a factory in
`EVALUATORS`. Modules of policy evaluation and of language models are imported by their factories
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from privrl_bench.collectors.batches import shard_size
from privrl_bench.collectors.collector import BatchShape, Collector
from privrl_bench.evaluation.evaluator import BackgroundEvaluator
from privrl_bench.experiment.builder import RunComponents
from privrl_bench.experiment.declared_users import in_order


def make_collector(components: RunComponents) -> Collector:
    """The collector of a run. Raises ConfigError, EnvironmentFailure."""
    return COLLECTORS[components.config.collector](components)


def make_evaluator(components: RunComponents) -> BackgroundEvaluator:
    """The evaluator of a run; it makes its environments when it is first used."""
    return EVALUATORS[components.config.algo.evaluator](components)


def _shape(components: RunComponents) -> BatchShape:
    """Of a round's cohort or, where a round takes all users, of one of its shards."""
    users, steps = components.gate.slots, components.steps
    if components.config.algo.full_batch:
        users = shard_size(components.spec, steps)
    return BatchShape(len(components.configs), users, steps)


def _live(components: RunComponents, users: int) -> Any:
    """A `SimulatedCollector` with so many slots in each replica."""
    from privrl_bench.collectors.simulated import SimulatedCollector

    config = components.config
    return SimulatedCollector(
        config.env,
        components.spec,
        components.algo.policy,
        components.streams,
        users,
        components.steps,
        config.algo.gamma,
        config.hardware.env_workers,
        components.gate.local,
    )


def _simulated(components: RunComponents) -> Collector:
    return cast(Collector, _live(components, components.gate.slots))


def _returning_users(components: RunComponents) -> Collector:
    from privrl_bench.collectors.returning_users import ReturningUsers

    algo, gate = components.config.algo, components.gate
    live = _live(components, len(algo.arrivals(0)))
    population = algo.people(components.rounds)
    return ReturningUsers(live, components.spec, population, gate.slots, algo.arrivals)


def _dataset(components: RunComponents) -> Collector:
    from privrl_bench.collectors.dataset import DatasetCollector

    assert components.data is not None
    config = components.config
    return DatasetCollector(components.data, config.env, _shape(components), in_order(config))


def _behavior(components: RunComponents) -> Collector:
    from privrl_bench.collectors.behavior import BehaviorCollector

    config, algo = components.config, cast(Any, components.algo)
    return BehaviorCollector(
        config.env,
        components.spec,
        algo.policy,
        components.streams,
        int(config.privacy.population or 0),
        _shape(components),
        config.hardware.env_workers,
        in_order(config),
    )


def _prompts(components: RunComponents) -> Collector:
    from privrl_bench.collectors.prompts import PromptCollector

    assert components.task is not None
    adapter, users = components.algo.adapter, components.gate.slots
    env = components.config.env
    return PromptCollector(env, components.task, adapter, components.streams, users)


def _returns(components: RunComponents) -> BackgroundEvaluator:
    from privrl_bench.evaluation.returns import ReturnEvaluator

    config, hardware = components.config, components.config.hardware
    return BackgroundEvaluator(
        ReturnEvaluator,
        config.env,
        components.spec,
        components.algo.policy,
        components.streams,
        config.eval.episodes,
        config.eval.policy == "greedy",
        hardware.env_workers,
        aside=hardware.eval_process,
        busy=hardware.threads + hardware.env_workers,
    )


def _mspbe(components: RunComponents) -> BackgroundEvaluator:
    from privrl_bench.evaluation.mspbe import MspbeEvaluator

    config = components.config
    arguments = (config.env, components.spec, components.algo)
    return BackgroundEvaluator(MspbeEvaluator, *arguments, aside=False, busy=0)


def _generations(components: RunComponents) -> BackgroundEvaluator:
    from privrl_bench.evaluation.generations import GenerationEvaluator

    episodes = components.config.eval.episodes
    arguments = (components.task, components.algo.adapter, components.streams, episodes)
    return BackgroundEvaluator(GenerationEvaluator, *arguments, aside=False, busy=0)


COLLECTORS: dict[str, Callable[[RunComponents], Collector]] = {
    "simulated": _simulated,
    "returning_users": _returning_users,
    "dataset": _dataset,
    "behavior": _behavior,
    "prompts": _prompts,
}

EVALUATORS: dict[str, Callable[[RunComponents], BackgroundEvaluator]] = {
    "returns": _returns,
    "mspbe": _mspbe,
    "generations": _generations,
}
