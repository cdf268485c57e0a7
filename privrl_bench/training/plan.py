"""The plan of runs: everything about them that is known before they start, built once.

    configurations -> users -> rounds -> algorithm -> z, by events -> rounds within the budget -> gate

Training, `plan`, `explain`, `tune`, the audits, sweeps and workers all take a `Plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from privrl_bench.algorithms.base import (
    Algorithm,
    AlgorithmContext,
    PrivacyFacts,
    PublicSources,
    check_actions,
)
from privrl_bench.algorithms.registry import algorithm
from privrl_bench.composition.identity import group_key, noise_key
from privrl_bench.composition.rules import check_run
from privrl_bench.config.schema import PrivacyConfig, RunConfig
from privrl_bench.envs.backends import on_device
from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.evaluation import evaluator_of
from privrl_bench.functional.rng import Streams
from privrl_bench.metrics import shown_epsilon
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.accounting.calibrate import affordable, calibrated_z
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import noise_source
from privrl_bench.privacy.rules import rules
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.training.charging import budget_of
from privrl_bench.training.plugin_review import note
from privrl_bench.training.trained_policy import read_policy
from privrl_bench.types import EnvSpec, UserBatch
from privrl_bench.users import kind_and_spec
from privrl_bench.users.collectors.live import SimulatedCollector
from privrl_bench.users.users import Users

# (privacy of each replica, rounds, ledgers, runs whose noise is drawn; none: no noise is) -> gate
_Gates = Callable[[list[PrivacyConfig], int, list[Ledger], Sequence[RunConfig]], Gate]


@dataclass(frozen=True)
class Plan:
    """R runs that differ in seed and z only, before they start.

    Attributes:
        given: the configurations as they were composed, with numbers for `privacy.z=auto` and `fit_population`.
        users: who the users are.
        algo: the algorithm.
        gate: mechanism, sampler, ledgers and guarantee. The ledgers are in memory; see `opened`.
        streams: random streams of each run.
        rounds: number of releases.
        iterations: of the loop: the releases, and what the algorithm does after the last.
    """

    given: list[RunConfig]
    users: Users
    algo: Algorithm
    gate: Gate
    streams: list[Streams]
    rounds: int
    iterations: int
    _gates: Callable[[list[Ledger]], Gate]

    def opened(self, ledgers: Sequence[Path | None]) -> Plan:
        """The same plan with a gate of its own, whose ledgers are these files; None: in memory.

        Raises PrivacyError: a ledger of other settings.
        """
        return replace(self, gate=self._gates([Ledger(path) for path in ledgers]))

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
        return self.users.size.steps

    @property
    def round_steps(self) -> int:
        """Environment steps that one round counts."""
        return self.users.size.round_steps

    @property
    def unit(self) -> str:
        """What the loop counts: rounds of users, or iterations where policy training follows them."""
        return "iterations" if self.iterations > self.rounds else "rounds"

    @property
    def counted(self) -> dict[str, Any]:
        """What progress counts: environment steps, or iterations of a run from data; see `Progress`."""
        return {"unit": self.unit, "each": self.round_steps} if self.users.from_data else {}


def make_plan(configs: list[RunConfig], horizon: int | None = None) -> Plan:
    """The plan of runs that are trained together. No environment is kept, and no user's data are used.

    Args:
        configs: equal but for `seed` and `privacy.z`.
        horizon: rounds that the algorithm and the gate are made for, if not those of the run: the leak test
            moves a short run to late rounds of a long one.

    Raises:
        ConfigError: the environment cannot be made, sizes do not fit, or the budget is too small.
    """
    for config in configs:
        check_run(config)
    if len({group_key(config) for config in configs}) > 1:
        raise ConfigError("", "runs trained together may differ in seed and privacy.z only")
    unreviewed = note(configs[0])
    kind, spec = kind_and_spec(configs[0])
    check_actions(configs[0].algo.traits.actions, spec, configs[0].algo.name)  # before sizes
    users = kind(configs, spec)
    budget_of(users.config, users)  # that it fits them
    asked = _rounds_of(users)
    rounds = users.room(asked).fitted() if users.config.fit_population else asked
    _check_minibatches(users)
    there = configs[0].hardware.device if on_device(configs[0].env) else None
    streams = [Streams(c.seed, device=there) for c in configs]
    context = _context(users, streams)
    build: Any = algorithm(users.config.algo.name)
    algo: Algorithm = build(users.config.algo, context)
    gates = _gates_of(users, algo, unreviewed)
    known: dict[str, Any] = {}
    if users.config.fit_population:
        known = {"rounds": rounds if rounds < asked else configs[0].rounds, "fit_population": False}
    z = _calibrated(users.config, lambda privacy: gates([privacy], rounds, [Ledger(None)], ()))
    given = [_with_numbers(c, z, known) for c in configs]
    users = users.of([_with_numbers(c, z, known) for c in users.configs])
    privacy = [c.privacy for c in users.configs]
    memory = [Ledger(None) for _ in given]
    if horizon is None:
        planned = gates(privacy, rounds, memory, ())
        rounds = min(_allowed(planned, r) for r in range(len(given)))
    users.room(rounds).check()
    mechanism = rules(users.config.privacy).mechanism
    drawn = tuple(0.0 if mechanism.on_devices else p.noise_multiplier for p in privacy)

    def gate(ledgers: list[Ledger]) -> Gate:
        return gates(privacy, horizon or rounds, ledgers, given)

    made = gate(memory)
    context.schedule.rounds, context.schedule.z = horizon or rounds, drawn
    context.schedule.stds = [made.mechanism.stds(r) for r in range(len(given))]
    iterations = rounds + algo.terms().iterations_after
    return Plan(given, users, algo, made, streams, rounds, iterations, gate)


def _with_numbers(config: RunConfig, z: float | None, known: dict[str, Any]) -> RunConfig:
    """The configuration with what was found for `privacy.z=auto` and `fit_population`."""
    privacy = config.privacy if config.privacy.z is not None else replace(config.privacy, z=z)
    if privacy is config.privacy and not known:
        return config
    one_round = {"rounds": config.rounds} if config.algo.traits.one_round else {}
    return replace(config, privacy=privacy, **{**known, **one_round})


def _rounds_of(users: Users) -> int:
    """Number of rounds that a configuration asks for. Raises ConfigError: not even one."""
    config, steps, round_steps = users.config, users.size.steps, users.size.round_steps
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
    config, mechanism = users.config, rules(users.config.privacy).mechanism
    minibatches = getattr(config.algo, "minibatches", 1)
    pooled = mechanism.pooled or (mechanism.on_devices and config.algo.traits.pools_users)
    pool, what = users.size.round_steps if pooled else users.size.steps, "steps"
    if users.whole:
        pool, what = config.privacy.users_per_round, "users"
    if minibatches > pool:
        raise ConfigError(
            "algo.minibatches", f"must be at most the {pool} {what} it divides, got {minibatches}"
        )


def _context(users: Users, streams: list[Streams]) -> AlgorithmContext:
    """Public facts that the algorithm is built from; rounds and z are not known yet."""
    config, spec = users.config, users.spec
    facts = PrivacyFacts(
        clip=config.privacy.clip,
        users=config.privacy.users_per_round,
        population=config.privacy.population or 0,
        used_once=users.in_order(config),
        mechanism=rules(config.privacy).mechanism,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        learns_obs=config.env.obs_scaling == "private",
        learns_reward=config.env.reward_scaling == "private",
    )
    sources = PublicSources(
        simulate=lambda policy, episodes: _simulated(config, spec, policy, episodes, streams),
        **users.public_sources(streams),
    )
    return AlgorithmContext(
        spec=spec,
        privacy=facts,
        sources=sources,
        device=config.hardware.device,
        env=config.env,
        behavior_policy=config.data.policy,
        read_policy=read_policy,
    )


def _gates_of(users: Users, algo: Algorithm, unreviewed: dict[str, str]) -> _Gates:
    """Makes the gates of these users and this algorithm, which differ in noise, rounds and ledgers."""
    config, terms = users.config, algo.terms()
    mechanism = rules(config.privacy).mechanism
    unit, caveats, notes = unit_of(users, algo), caveats_of(users, algo), notes_of(users)
    scalings = {RUNNING_OBS: config.env.obs_scaling, RUNNING_REWARD: config.env.reward_scaling}

    def gates(
        privacy: list[PrivacyConfig], rounds: int, ledgers: list[Ledger], drawn: Sequence[RunConfig]
    ) -> Gate:
        seeds = [(c.seed, noise_key(c)) for c in drawn] or [(0, 0)] * len(privacy)
        gate = Gate(
            configs=privacy,
            blocks=algo.blocks(),
            unit=unit,
            rounds=rounds,
            noises=[noise_source(config.privacy.noise, *seed) for seed in seeds],
            ledgers=ledgers,
            caveats=caveats,
            notes={**notes, **terms.notes, **unreviewed},
            devices=mechanism.devices(config.env, privacy, users.spec, users.size.steps),
            relations=users.relations,
            pooled=config.algo.traits.pools_users,
        )
        for name in (name for name, scaling in scalings.items() if scaling == "running"):
            gate.permit(name)
        return gate

    return gates


# --- numbers that follow from events


def _calibrated(config: RunConfig, gate: Callable[[PrivacyConfig], Gate]) -> float | None:
    """Z for `privacy.epsilon`, where the configuration has none; else None.

    Args:
        config: of a run.
        gate: that of the run with another privacy configuration.

    Raises:
        ConfigError: no z gives this epsilon.
    """
    target = config.privacy.epsilon
    if config.privacy.z is not None or target is None:
        return None
    plain = replace(config.privacy, z=1.0, epsilon=None)
    try:
        z = calibrated_z(gate(plain), 0, target)
        # Discrete noise has a cost that depends, very little, on z itself.
        while gate(replace(plain, z=z)).real_epsilon(0) > target:
            z *= 1.0 + 1e-6
        return z
    except PrivacyError as error:
        other = "" if plain.accountant == "pld" else ", privacy.accountant=pld, a tighter bound"
        rounds = gate(plain).rounds
        raise ConfigError(
            "privacy.epsilon", f"{error} after {rounds} rounds; give another{other}, or privacy.z"
        ) from error
    except ConfigError as error:
        if error.key != "privacy.z":
            raise
        rule = error.problem.partition(", got ")[0]
        why = f"{target:g} at delta {plain.delta:g} takes z = {z:.6g}, which {rule}"
        raise ConfigError("privacy.epsilon", why) from error


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
        more = f"privacy.z={calibrated_z(gate, r, budget):g} would last for the whole run"
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


# --- what the guarantee says: the unit, what is outside it, and what it assumes


NOT_PRIVATE = "not private"


def unit_of(users: Users, algo: Algorithm) -> Unit:
    """The privacy unit: the mechanism's, the algorithm's, or that of the users."""
    config = users.config
    mechanism = rules(config.privacy).mechanism
    return (
        mechanism.unit(config.env, config.privacy, users.spec, users.size.steps)
        or (algo.terms().unit if users.most == 1 else None)
        or users.terms().unit
    )


def caveats_of(users: Users, algo: Algorithm) -> dict[str, str]:
    """Everything in the configuration that lets private data past the gate, by name.

    With noise on the users' devices nothing does: algorithm and scaling are post-processing, and neighbours
    share rewards and ends, so that one episode does not move where another begins.
    """
    config, mechanism = users.config, rules(users.config.privacy).mechanism
    caveats: dict[str, str] = {}
    if config.search is not None:
        caveats[PART_OF_SEARCH] = f"one of several runs, chosen by their results; {config.search}"
    if mechanism.on_devices:
        return caveats
    caveats |= algo.terms().caveats
    if not mechanism.private:
        caveats[NOT_PRIVATE] = "privacy=none: nothing is clipped, noised or bounded"
    else:
        caveats |= users.terms().caveats
    if config.env.obs_scaling == "running":
        caveats[RUNNING_OBS] = "earlier users' observations scale later users' without noise"
    if config.env.reward_scaling == "running":
        caveats[RUNNING_REWARD] = "earlier users' rewards scale later users' without noise"
    return caveats


def notes_of(users: Users) -> dict[str, str]:
    """What the guarantee takes as public or given, the noise apart."""
    notes: dict[str, str] = {}
    config, mechanism = users.config, rules(users.config.privacy).mechanism
    if not mechanism.private:
        return notes
    public = ["hyperparameters", f"U={config.privacy.users_per_round}", "the number of rounds"]
    if {"public", "private"} & {config.env.obs_scaling, config.env.reward_scaling}:
        public.append("the scaling constants of env")
    terms = users.terms()
    if terms.bounded:
        public.append("population, a bound on the number of users")
    public += [*mechanism.public, *terms.public]
    notes |= {**mechanism.notes(config.privacy), **terms.notes}
    notes["scope"] = _scope(config, live=users.in_environments)
    notes["public information"] = ", ".join(public)
    return notes


def _scope(config: RunConfig, live: bool) -> str:
    """What is outside the guarantee of any run of this kind. `live`: users step environments."""
    outside = "not tuning on the same users, not timing"
    parts = [outside + (", not a stop caused by a user's failing environment" if live else "")]
    parts.append(evaluator_of(config).note)
    if live:
        parts.append(
            "an environment's reset must forget the user before, and environments must share nothing"
        )
    parts.append(
        "a user with non-finite data counts as absent (train/invalid_users, which is private, counts them)"
    )
    return "; ".join(parts)
