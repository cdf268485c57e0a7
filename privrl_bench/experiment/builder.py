"""From configurations to the parts of a run: environment facts, algorithm, gate, budget."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from privrl_bench.algorithms import algorithm
from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, PrivacyFacts, PublicSources
from privrl_bench.config.identity import group_key, noise_key
from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.experiment.calibration import resolve
from privrl_bench.experiment.guarantee_terms import caveats_of, notes_of, unit_of
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
from privrl_bench.users import users_of
from privrl_bench.users.collectors.live import SimulatedCollector
from privrl_bench.users.users import Users


@dataclass(frozen=True)
class RunComponents:
    """What a run over R replicas is made of.

    Attributes:
        users: who the users are.
        rounds: number of releases.
        iterations: of the loop: the releases, and what the algorithm does after the last.
        composed: the configurations as they were given to `build`.
    """

    users: Users
    algo: Algorithm
    gate: Gate
    streams: list[Streams]
    rounds: int
    iterations: int
    composed: list[RunConfig] = field(default_factory=list)

    @property
    def configs(self) -> list[RunConfig]:
        """The configurations, with what follows from their users."""
        return self.users.configs

    @property
    def config(self) -> RunConfig:
        """The configuration, but for seed and z the same for all replicas."""
        return self.users.config

    @property
    def spec(self) -> EnvSpec:
        """Public facts of the environment."""
        return self.users.spec

    @property
    def steps(self) -> int:
        """T, steps of one user."""
        return self.users.steps

    @property
    def round_steps(self) -> int:
        """Environment steps that one round counts."""
        return self.users.round_steps

    @property
    def unit(self) -> str:
        """What the loop counts: rounds of users, or iterations where policy training follows them."""
        return "iterations" if self.iterations > self.rounds else "rounds"

    @property
    def counted(self) -> dict[str, Any]:
        """What progress counts: environment steps, or iterations of a run from data; see `Progress`."""
        return {"unit": self.unit, "each": self.round_steps} if self.users.from_data else {}


def supports_replicas(config: RunConfig) -> bool:
    """Whether several runs of this algorithm that differ in seed and z can be trained together."""
    return algorithm(config.algo.name).replicas


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
    composed = configs
    unreviewed = note(composed[0])
    users = users_of(configs)
    algorithm(users.config.algo.name).acts_in(
        users.spec, users.config.algo.name
    )  # the environment is named first
    rounds = _rounds_of(users)
    if users.config.fit_population:
        rounds = users.most_rounds(rounds)
    users.for_rounds(rounds)
    _check_minibatches(users)
    streams = [Streams(c.seed) for c in configs]
    made = (users, streams, [Ledger(p) for p in ledger_paths], noises)
    algo, gate = _build(horizon or rounds, *made)
    allowed = rounds if horizon else min(_allowed(gate, r) for r in range(len(configs)))
    if allowed < rounds:
        rounds = allowed
        algo, gate = _build(rounds, *made)
    users.check_enough(rounds)
    env = users.config.env
    scalings = {RUNNING_OBS: env.obs_scaling, RUNNING_REWARD: env.reward_scaling}
    for name in (name for name, scaling in scalings.items() if scaling == "running"):
        gate.permit(name)
    gate.notes |= unreviewed
    iterations = rounds + algo.iterations_after
    return RunComponents(users, algo, gate, streams, rounds, iterations, composed)


def _rounds_of(users: Users) -> int:
    """Number of rounds that a configuration asks for. Raises ConfigError: not even one."""
    config, steps, round_steps = users.config, users.steps, users.round_steps
    rounds = config.rounds or config.total_steps // round_steps
    if rounds < 1:
        count = round_steps // steps
        each = f"{count} users x {steps} steps = " if count * steps == round_steps else ""
        raise ConfigError(
            "total_steps", f"one round takes {each}{round_steps}, got {config.total_steps}"
        )
    return rounds


def _check_minibatches(users: Users) -> None:
    """Raise ConfigError for more minibatches than there are users or steps to divide."""
    config, mechanism = users.config, users.config.privacy.rules.mechanism
    minibatches = getattr(config.algo, "minibatches", 1)
    pooled = mechanism.pooled or (mechanism.on_devices and config.algo.traits.pools_users)
    pool, what = users.divided(pooled)
    if minibatches > pool:
        raise ConfigError(
            "algo.minibatches",
            f"must be at most the {pool} {what} it divides, got {minibatches}",
        )


def _build(
    rounds: int,
    users: Users,
    streams: list[Streams],
    ledgers: list[Ledger],
    noises: list[NoiseSource],
) -> tuple[Algorithm, Gate]:
    """Algorithm and gate of a run of so many rounds."""
    configs, config, spec = users.configs, users.config, users.spec
    mechanism = config.privacy.rules.mechanism
    facts = PrivacyFacts(
        clip=config.privacy.clip,
        users=config.privacy.users_per_round,
        population=config.privacy.population or 0,
        used_once=users.in_order(config),
        mechanism=mechanism,
        z=tuple(0.0 if mechanism.on_devices else c.privacy.noise_multiplier for c in configs),
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        learns_obs=config.env.obs_scaling == "private",
        learns_reward=config.env.reward_scaling == "private",
    )
    sources = PublicSources(
        simulate=lambda policy, episodes: _simulated(config, spec, policy, episodes, streams),
        **users.public_sources(streams),
    )
    context = AlgorithmContext(
        spec=spec,
        rounds=rounds,
        privacy=facts,
        sources=sources,
        device=config.hardware.device,
        env=config.env,
        behavior_policy=config.data.policy,
        read_policy=read_policy,
    )
    build: Any = algorithm(config.algo.name)
    algo: Algorithm = build(config.algo, context)
    privacy = [c.privacy for c in configs]
    gate = Gate(
        configs=privacy,
        blocks=algo.blocks(),
        unit=unit_of(users, algo),
        rounds=rounds,
        noises=noises,
        ledgers=ledgers,
        caveats=caveats_of(users, algo),
        notes={**notes_of(users), **algo.notes()},
        devices=mechanism.devices(config.env, privacy, spec, users.steps),
        relations=users.relations,
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
