"""From configurations to the parts of a run: environment facts, algorithm, gate, budget."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from privrl_bench.algorithms import algorithm
from privrl_bench.algorithms.base import (
    Algorithm,
    AlgorithmContext,
    PrivacyFacts,
    PublicSources,
    check_actions,
)
from privrl_bench.collectors.collector import BatchShape
from privrl_bench.collectors.dataset import Dataset, DatasetCollector
from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.composition.rules import check_run
from privrl_bench.config.identity import group_key, noise_key
from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.config.traits import Data
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.errors import ConfigError, PrivacyError, require
from privrl_bench.experiment.calibration import resolve
from privrl_bench.experiment.dataset_setup import with_data
from privrl_bench.experiment.declared_users import (
    check_enough,
    in_order,
    most_rounds,
    with_coming,
    with_one_round,
    with_population,
)
from privrl_bench.experiment.guarantee_terms import (
    RELATIONS_OF_DATASETS,
    caveats_of,
    notes_of,
    unit_of,
)
from privrl_bench.experiment.plugin_review import note
from privrl_bench.experiment.policy_file import read_policy
from privrl_bench.functional.rng import Streams
from privrl_bench.metrics import shown_epsilon
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.accounting.calibrate import affordable, needed_z
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import NoiseSource, noise_source
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import EnvSpec, UserBatch

if TYPE_CHECKING:
    from privrl_bench.models.language.task import TextTask


@dataclass(frozen=True)
class RunComponents:
    """What a run over R replicas is made of.

    Attributes:
        steps: T, steps of one user.
        round_steps: U * T, environment steps that one round counts.
        rounds: number of releases.
        iterations: of the loop: the releases, and what the algorithm does after the last.
        data: the dataset of an offline run.
        task: models and prompts of a text environment.
        composed: the configurations as they were given to `build`.
    """

    configs: list[RunConfig]
    spec: EnvSpec
    algo: Algorithm
    gate: Gate
    streams: list[Streams]
    steps: int
    round_steps: int
    rounds: int
    iterations: int
    data: Dataset | None = None
    task: TextTask | None = None
    composed: list[RunConfig] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        """The configuration, but for seed and z the same for all replicas."""
        return self.configs[0]

    @property
    def private_users(self) -> bool:
        """Whether messages of exceptions may hold data of real users."""
        return self.spec.users is not None or self.data is not None

    @property
    def unit(self) -> str:
        """What the loop counts: rounds of users, or iterations where policy training follows them."""
        return "iterations" if self.iterations > self.rounds else "rounds"

    @property
    def counted(self) -> dict[str, Any]:
        """What progress counts: environment steps, or iterations of a run from data; see `Progress`."""
        return {"unit": self.unit, "each": self.round_steps} if self.config.from_data else {}


def supports_replicas(config: RunConfig) -> bool:
    """Whether several runs of this algorithm that differ in seed and z can be trained together."""
    return config.algo.traits.replicas


def user_steps(config: EnvConfig, spec: EnvSpec, data: Dataset | None = None) -> int:
    """T: the episode limit for whole episodes (of a dataset: as many as a user has), or `env.user_steps`."""
    if data is not None:
        return spec.max_episode_steps * data.most
    if config.user == "episode" or config.user_steps is None:
        return spec.max_episode_steps
    return config.user_steps


def build(
    configs: list[RunConfig], ledger_paths: list[Path | None], horizon: int | None = None
) -> RunComponents:
    """Build everything but the environments' slots.

    Args:
        configs: equal but for `seed` and `privacy.z`.
        ledger_paths: where each replica's ledger is; None keeps it in memory.
        horizon: rounds that the algorithm and the gate are built for, if not those of the run: the leak test
            moves a short run to late rounds of a long one.

    A configuration without numbers (`calibration.resolve`) is given them first: `RunComponents.configs`.

    Raises:
        ConfigError: the environment cannot be made, sizes do not fit, or the budget is too small.
    """
    return _assemble(resolved(configs), ledger_paths, horizon)


def resolved(configs: list[RunConfig]) -> list[RunConfig]:
    """The same runs with numbers for `privacy.z=auto` and `fit_population`. Raises ConfigError."""
    return resolve(configs, lambda config: _assemble([config], [None]))


def _assemble(
    configs: list[RunConfig], ledger_paths: list[Path | None], horizon: int | None = None
) -> RunComponents:
    """`build`, of configurations with numbers."""
    if len({group_key(config) for config in configs}) > 1:
        raise ConfigError("", "runs trained together may differ in seed and privacy.z only")
    noises = [noise_source(c.privacy.noise, c.seed, noise_key(c)) for c in configs]
    for config in configs:
        check_run(config)
    composed = configs
    unreviewed = note(composed[0])
    task = _task_of(configs[0]) if configs[0].env.kind == "text" else None
    data = None
    if configs[0].data.id is None:
        spec = env_spec(configs[0].env)
        configs = with_population(configs, spec)
    else:
        spec, data, configs = with_data(configs)
    configs = with_one_round(configs)
    config = configs[0]
    check_actions(config.algo.traits.actions, spec, config.algo.name)  # before sizes
    steps = user_steps(config.env, spec, data)
    round_steps = config.algo.round_steps(config.privacy.users_per_round, steps)
    rounds = _rounds_of(config, steps, round_steps)
    if config.fit_population:
        rounds = most_rounds(config, spec, rounds)
    if config.source is Data.KEPT:
        configs = with_coming(configs, config.algo.people(rounds), rounds, round_steps)
        config = configs[0]
    _check_minibatches(config, round_steps, steps)
    streams = [Streams(c.seed) for c in configs]
    made = (configs, spec, steps, streams, [Ledger(p) for p in ledger_paths], data, task, noises)
    algo, gate = _build(horizon or rounds, *made)
    allowed = rounds if horizon else min(_allowed(gate, r) for r in range(len(configs)))
    if allowed < rounds:
        rounds = allowed
        algo, gate = _build(rounds, *made)
    check_enough(config, spec, rounds, round_steps)
    if task is not None:
        _check_prompts(config, task, rounds)
    scalings = {RUNNING_OBS: config.env.obs_scaling, RUNNING_REWARD: config.env.reward_scaling}
    for name in (name for name, scaling in scalings.items() if scaling == "running"):
        gate.permit(name)
    gate.notes |= unreviewed
    sizes = (steps, round_steps, rounds, rounds + algo.terms().iterations_after)
    return RunComponents(configs, spec, algo, gate, streams, *sizes, data, task, composed)


def _rounds_of(config: RunConfig, steps: int, round_steps: int) -> int:
    """Number of rounds that a configuration asks for. Raises ConfigError: not even one."""
    rounds = config.rounds or config.total_steps // round_steps
    if rounds < 1:
        users = round_steps // steps
        each = f"{users} users x {steps} steps = " if users * steps == round_steps else ""
        raise ConfigError(
            "total_steps", f"one round takes {each}{round_steps}, got {config.total_steps}"
        )
    return rounds


_TASKS: dict[str, TextTask] = {}  # the last one opened, shared by the runs of a process


def _rlhf(module: str) -> Any:
    """A module that needs the extra `rlhf`."""
    return importlib.import_module(f"privrl_bench.{module}")


def _task_of(config: RunConfig) -> TextTask:
    """Models and prompts of a text environment. Raises ConfigError."""
    device = config.hardware.device  # a model that is in use is never moved
    key = repr((config.env, config.env.text, device))
    if key not in _TASKS:
        _TASKS.clear()
        _TASKS[key] = _rlhf("models.language.task").open_task(config.env).to(device)
    there = len(_TASKS[key].prompts_eval)
    rule = f"at most the {there} prompts for evaluation of {config.env.label}"
    require("eval.episodes", config.eval.episodes <= there, rule, config.eval.episodes)
    return _TASKS[key]


def _check_prompts(config: RunConfig, task: TextTask, rounds: int) -> None:
    """Every user is a place with a prompt of its own. Raises ConfigError: there are not enough."""
    users, there = config.privacy.users_per_round, len(task.prompts_train)
    if rounds * users > there:
        raise ConfigError(
            "rounds" if config.rounds else "total_steps",
            f"{rounds} rounds of {users} users need {rounds * users} reviews, and each is used once; "
            f"{config.env.label} has {there}: at most {there // users} rounds, "
            f"total_steps={there // users * users * task.new_tokens}",
        )


def _check_minibatches(config: RunConfig, round_steps: int, steps: int) -> None:
    """Raise ConfigError for more minibatches than there are users (texts) or steps to divide."""
    texts = config.env.kind == "text"
    minibatches = getattr(config.algo, "minibatches", 1)
    mechanism = config.privacy.rules.mechanism
    pooled = mechanism.pooled or (mechanism.on_devices and config.algo.traits.pools_users)
    pool = round_steps if pooled else steps
    pool = config.privacy.users_per_round if texts else pool
    if minibatches > pool:
        raise ConfigError(
            "algo.minibatches",
            f"must be at most the {pool} {'users' if texts else 'steps'} it divides, got {minibatches}",
        )


def _build(
    rounds: int,
    configs: list[RunConfig],
    spec: EnvSpec,
    steps: int,
    streams: list[Streams],
    ledgers: list[Ledger],
    data: Dataset | None,
    task: TextTask | None,
    noises: list[NoiseSource],
) -> tuple[Algorithm, Gate]:
    """Algorithm and gate of a run of so many rounds."""
    config = configs[0]
    mechanism = config.privacy.rules.mechanism
    facts = PrivacyFacts(
        clip=config.privacy.clip,
        users=config.privacy.users_per_round,
        population=config.privacy.population or 0,
        used_once=in_order(config),
        mechanism=mechanism,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        learns_obs=config.env.obs_scaling == "private",
        learns_reward=config.env.reward_scaling == "private",
    )
    shape = BatchShape(1, 1, steps)
    sources = PublicSources(
        simulate=lambda policy, episodes: _simulated(config, spec, policy, episodes, streams),
        transitions=None if data is None else DatasetCollector(data, config.env, shape).public(),
        task=task,
        ask=None if task is None else _rlhf("collectors.prompts").public_answers(task, streams),
    )
    context = AlgorithmContext(
        spec=spec,
        privacy=facts,
        sources=sources,
        device=config.hardware.device,
        env=config.env,
        behavior_policy=config.data.policy,
        read_policy=read_policy,
    )
    build: Any = algorithm(config.algo.name)
    algo: Algorithm = build(config.algo, context)
    z = tuple(0.0 if mechanism.on_devices else c.privacy.noise_multiplier for c in configs)
    context.schedule.set(rounds, z)
    privacy = [c.privacy for c in configs]
    gate = Gate(
        configs=privacy,
        blocks=algo.blocks(),
        unit=unit_of(config, spec, steps, data, algo),
        rounds=rounds,
        noises=noises,
        ledgers=ledgers,
        caveats=caveats_of(config, algo),
        notes={**notes_of(config, spec, data), **algo.terms().notes},
        devices=mechanism.devices(config.env, privacy, spec, steps),
        relations=None if data is None else RELATIONS_OF_DATASETS,
        pooled=config.algo.traits.pools_users,
    )
    return algo, gate


def _allowed(gate: Gate, r: int) -> int:
    """How many of the planned rounds `privacy.epsilon` allows. Raises ConfigError: not even one."""
    budget = gate.configs[r].epsilon
    if budget is None:
        return gate.rounds
    allowed = affordable(gate, r, budget)
    if allowed:
        return allowed
    more = "use a larger budget: no privacy.z is enough by this accountant"
    with suppress(PrivacyError):
        more = f"privacy.z={needed_z(gate, r, budget):g} would last for the whole run"
    raise ConfigError(
        "privacy.epsilon",
        f"z = {gate.configs[r].noise_multiplier:g} costs more than epsilon {shown_epsilon(budget)}; {more}",
    )


def _simulated(
    config: RunConfig, spec: EnvSpec, policy: Policy, episodes: int, streams: list[Streams]
) -> Callable[[Tensor, int], UserBatch]:
    """Return a function that simulates whole episodes of a released policy, on streams of its own."""
    env = replace(config.env, user="episode", user_steps=None)
    aside = [s.public for s in streams]
    rollout = SimulatedCollector(
        env, spec, policy, aside, episodes, spec.max_episode_steps, config.algo.gamma
    )
    all_users = Cohort([episodes] * len(aside), None)
    return lambda actor, index: rollout.collect(actor, index, all_users)
