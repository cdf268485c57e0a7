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
from privrl_bench.collectors.shards import microbatch
from privrl_bench.config.traits import Data, Product
from privrl_bench.evaluation.evaluator import BackgroundEvaluator
from privrl_bench.experiment.builder import RunComponents
from privrl_bench.experiment.declared_users import in_order
from privrl_bench.experiment.shard_work import shard_users
from privrl_bench.kernels.machine import workers_of


def make_collector(components: RunComponents, users: int | None = None) -> Collector:
    """The collector of a run.

    Args:
        components: of the run.
        users: of a shard; None: as one process takes them.

    Raises:
        ConfigError, EnvironmentFailure: it cannot be made.
    """
    config, steps = components.config, components.steps
    if config.algo.traits.full_batch:
        users = shard_size(components.spec, steps)
    shape = BatchShape(len(components.configs), users or shard_users(components), steps)
    return COLLECTORS[config.source](components, shape)


def make_evaluator(components: RunComponents) -> BackgroundEvaluator:
    """The evaluator of a run; it makes its environments when it is first used."""
    return EVALUATORS[components.config.algo.traits.releases](components)


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
        components.gate.devices,
    )


def _simulated(components: RunComponents, shape: BatchShape) -> Collector:
    return cast(Collector, _live(components, shape.users))


def _returning_users(components: RunComponents, shape: BatchShape) -> Collector:
    from privrl_bench.collectors.returning_users import ReturningUsers

    algo = components.config.algo
    live = _live(components, len(algo.arrivals(0)))
    population = algo.people(components.rounds)
    return ReturningUsers(live, components.spec, population, shape.users, algo.arrivals)


def _dataset(components: RunComponents, shape: BatchShape) -> Collector:
    from privrl_bench.collectors.dataset import DatasetCollector

    assert components.data is not None
    config = components.config
    return DatasetCollector(components.data, config.env, shape, in_order(config))


def _behavior(components: RunComponents, shape: BatchShape) -> Collector:
    from privrl_bench.collectors.behavior import BehaviorCollector

    config, algo = components.config, cast(Any, components.algo)
    return BehaviorCollector(
        config.env,
        components.spec,
        algo.policy,
        components.streams,
        int(config.privacy.population or 0),
        shape,
        in_order(config),
    )


def _prompts(components: RunComponents, shape: BatchShape) -> Collector:
    from privrl_bench.collectors.prompts import PromptCollector

    assert components.task is not None
    algo, users, env = components.algo, components.gate.slots, components.config.env
    task, streams = components.task, components.streams
    together = microbatch(users, components.config.algo.traits.microbatch)
    return PromptCollector(env, task, algo.adapter, streams, users, together, shape.users)


def _returns(components: RunComponents) -> BackgroundEvaluator:
    from privrl_bench.evaluation.returns import ReturnEvaluator

    config = components.config
    return BackgroundEvaluator(
        ReturnEvaluator,
        config.env,
        components.spec,
        components.algo.policy,
        components.streams,
        config.eval.episodes,
        config.eval.policy == "greedy",
        aside=workers_of(config) > 1,
    )


def _mspbe(components: RunComponents) -> BackgroundEvaluator:
    from privrl_bench.evaluation.mspbe import MspbeEvaluator

    config = components.config
    arguments = (config.env, components.spec, components.algo)
    return BackgroundEvaluator(MspbeEvaluator, *arguments, aside=False)


def _generations(components: RunComponents) -> BackgroundEvaluator:
    from privrl_bench.evaluation.generations import GenerationEvaluator

    episodes = components.config.eval.episodes
    arguments = (components.task, components.algo.adapter, components.streams, episodes)
    return BackgroundEvaluator(GenerationEvaluator, *arguments, aside=False)


COLLECTORS: dict[Data, Callable[[RunComponents, BatchShape], Collector]] = {
    Data.LIVE: _simulated,
    Data.KEPT: _returning_users,
    Data.RECORDED: _dataset,
    Data.ACTED: _behavior,
    Data.TEXTS: _prompts,
}

EVALUATORS: dict[Product, Callable[[RunComponents], BackgroundEvaluator]] = {
    Product.POLICY: _returns,
    Product.VALUES: _mspbe,
    Product.TEXT_POLICY: _generations,
}
