"""From configurations to the parts of a run: environment facts, algorithm, privacy plan, budget."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from privrl_bench.algorithms import algorithm
from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, PrivacyFacts, PublicSources
from privrl_bench.algorithms.ope.ope_settings import EvaluationConfig
from privrl_bench.collectors.collector import BatchShape
from privrl_bench.collectors.dataset import Dataset, DatasetCollector, open_data, scaled_by
from privrl_bench.collectors.prompts import public_answers
from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.config.identity import group_key, noise_key
from privrl_bench.config.schema import EnvConfig, PrivacyConfig, RunConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.errors import ConfigError, PrivacyError, require
from privrl_bench.experiment import declared_users as real_users
from privrl_bench.experiment.plugin_review import note
from privrl_bench.functional.rng import Streams
from privrl_bench.metrics import shown_epsilon
from privrl_bench.models.language.task import TextTask, open_task
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.calibrate import affordable, needed_z
from privrl_bench.privacy.gate import Cohort, Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.local import LocalNoise, ranges_of
from privrl_bench.privacy.noise import NoiseSource, noise_source
from privrl_bench.types import EnvSpec, UserBatch

CARRIED_OVER = "carried-over environment"
NOT_PRIVATE = "not private"


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
    """

    configs: list[RunConfig]
    spec: EnvSpec
    algo: Algorithm
    plan: Gate
    streams: list[Streams]
    steps: int
    round_steps: int
    rounds: int
    iterations: int
    data: Dataset | None = None
    task: TextTask | None = None

    @property
    def config(self) -> RunConfig:
        """The configuration, but for seed and z the same for all replicas."""
        return self.configs[0]


def supports_replicas(config: RunConfig) -> bool:
    """Whether several runs of this algorithm that differ in seed and z can be trained together."""
    return algorithm(config.algo.name).replicas


def user_steps(config: EnvConfig, spec: EnvSpec, data: Dataset | None = None) -> int:
    """T: the episode limit for whole episodes (of a dataset: as many as a user has), or `env.user_steps`."""
    if data is not None:
        return spec.max_episode_steps * data.most
    if config.user == "episode" or config.user_steps is None:
        return spec.max_episode_steps
    return config.user_steps


def unit_of(
    config: EnvConfig,
    max_episode_steps: int,
    steps: int,
    poisson: bool,
    data: Dataset | None = None,
    who: str = "one user",
) -> Unit:
    """What one user is in words, and how many releases their data can enter; `who`: `EnvSpec.one_user`.

    An episode of `max_episode_steps` steps that may begin anywhere in a segment of `steps` meets at most
    (limit + steps - 2) // steps + 1 segments.
    """
    if data is not None:
        what = (
            "one trajectory"
            if data.most == 1
            else f"all trajectories of one user, up to {data.most},"
        )
        return Unit(f"{what} of at most {max_episode_steps} steps, in any of the rounds", None)
    if poisson:
        what = "one episode" if config.user == "episode" else f"{steps} steps from a reset"
        return Unit(f"{who} with all their rounds (each round: {what})", None)
    if config.user == "segment":
        meets = (max_episode_steps + steps - 2) // steps + 1
        return Unit(
            f"{who}: one episode of at most {max_episode_steps} steps, with every segment of {steps} steps that it "
            f"touches (up to {meets})",
            meets,
        )
    if config.user == "fresh":
        return Unit(f"{who}: {steps} steps from a reset, used once", 1)
    return Unit(f"{who}: one whole episode of at most {steps} steps, used once", 1)


def local_unit(
    config: EnvConfig, max_episode_steps: int, steps: int, noised: bool, who: str = "one user"
) -> Unit:
    """What of one user is protected by noise on their device; what they tell exactly is given.

    Args:
        noised: their rewards have noise, too.
        who: see `unit_of`.
    """
    what = "the observations and rewards" if noised else "the observations"
    given = "" if noised else "their rewards and "
    if config.user == "episode":
        return Unit(
            f"{what} of {who}: one trajectory of at most {steps} steps, used once, given {given}when it ends",
            1,
        )
    if config.user == "fresh":
        return Unit(
            f"{what} of {who}: {steps} steps from a reset, restarts included, used once, given "
            f"{given}when their episodes end",
            1,
        )
    meets = (max_episode_steps + steps - 2) // steps + 1
    return Unit(
        f"{what} of {who}: one trajectory of at most {max_episode_steps} steps, in up to {meets} rounds, given {given}when "
        "it ends",
        meets,
    )


def caveats_of(config: RunConfig, algo: Algorithm) -> dict[str, str]:
    """Everything in the configuration that lets private data past the gate, by name.

    With local noise nothing does: whatever algorithm and scaling do comes after it, and neighbours share
    rewards and ends, so that one episode does not move where another begins.
    """
    if config.privacy.mechanism == "local":
        return {}
    caveats = dict(algo.caveats())
    if config.privacy.mechanism == "none":
        caveats[NOT_PRIVATE] = "privacy=none: nothing is clipped, noised or bounded"
    elif config.env.user == "segment" and config.collector != "dataset":
        caveats[CARRIED_OVER] = (
            "an episode shares its segments with others and shapes when and where later ones run; "
            "epsilon is for nulling every segment it touches, not for the episode alone"
        )
    if config.env.obs_scaling == "running":
        caveats[RUNNING_OBS] = "earlier users' observations scale later users' without noise"
    if config.env.reward_scaling == "running":
        caveats[RUNNING_REWARD] = "earlier users' rewards scale later users' without noise"
    return caveats


def notes_of(config: RunConfig, spec: EnvSpec, data: Dataset | None = None) -> dict[str, str]:
    """What the guarantee takes as public or given, the noise apart."""
    notes: dict[str, str] = {}
    if config.privacy.mechanism == "none":
        return notes
    public = ["hyperparameters", f"U={config.privacy.users_per_round}", "the number of rounds"]
    if {"public", "private"} & {config.env.obs_scaling, config.env.reward_scaling}:
        public.append("the scaling constants of env")
    bounded = config.privacy.population is not None and config.privacy.sampling == "fixed"
    if data is None and (config.privacy.sampling == "poisson" or bounded):
        public.append("population, a bound on the number of people")
    if config.privacy.mechanism == "local":
        public.append("the ranges and noise scales of env")
        rewards = "" if config.privacy.rewards == "noised" else "rewards, "
        notes["told exactly"] = (
            f"{rewards}ends and lengths of episodes; on tasks like CartPole they reveal the return "
            "completely, and much of what epsilon is about can be guessed from them"
        )
    if data is not None:
        split = data.split
        public += [
            f"T={config.env.max_episode_steps or 'the episode max_episode_steps'}",
            f"at most {data.most} episode{'s' if data.most > 1 else ''} of one user",
            "how many episodes there are, and the keys of their metadata",
        ]
        if config.privacy.drawn:
            exact = config.privacy.population == split.users
            what = "exactly the private users" if exact else "a bound on the private users"
            public.append(f"population={config.privacy.population}, {what}")
            notes["neighbours"] = neighbours_of(config.privacy, split.users)
        key = data.trajectories.user_key
        who = f"the metadata key {key!r} names the users" if key else "each episode is a user"
        notes["dataset"] = (
            f"{split.public_users} of {split.public_users + split.users} users are public and unprotected: "
            "their data give the scaling, early stopping and start states; nobody's data may depend on "
            f"another's, though whoever collected them may have learned from one to the next; {who}"
        )
    elif config.collector == "behavior":
        public.append(f"population={config.privacy.population}, exactly the people who played")
        notes["people"] = "a person's randomness is her own, whoever else played"
    elif config.privacy.sampling == "poisson":
        notes["people"] = "a user's randomness is their own, whoever else joins the round"
    if data is None and spec.users is not None:
        public.append("the number of users that the environment declares")
        notes |= real_users.notes_of(config.privacy.drawn and config.collector != "returning_users")
    notes["scope"] = (
        "not tuning on the same people, not timing, not a stop caused by a user's failing environment; "
        "evaluation episodes are simulated; an environment's reset must forget the user before, and "
        "environments must share nothing; a user with non-finite data counts as absent (train/invalid_users, "
        "which is private, counts them)"
    )
    notes["public information"] = ", ".join(public)
    return notes


def neighbours_of(privacy: PrivacyConfig, users: int) -> str:
    """Which datasets of as many users are neighbours, in words.

    Which users are public is decided by how many there are and in which order. So their number is public
    whatever `privacy.population` is, and a neighbour has the same users in the same places.
    """
    number = f"N = {users}, the number of private users in the dataset, is taken as public"
    if int(privacy.population or 0) > users:
        number = f"the dataset's number of private users, {users}, is taken as public, too"
    one = "has no data" if privacy.adjacency == "zero_out" else "has other data"
    return f"one private user {one}, and all users keep their places; {number}"


def build(
    configs: list[RunConfig], ledger_paths: list[Path | None], horizon: int | None = None
) -> RunComponents:
    """Build everything but the environments' slots.

    Args:
        configs: equal but for `seed` and `privacy.z`.
        ledger_paths: where each replica's ledger is; None keeps it in memory.
        horizon: rounds that the algorithm and the plan are built for, if not those of the run: the leak test
            moves a short run to late rounds of a long one.

    Raises:
        ConfigError: the environment cannot be made, sizes do not fit, or the budget is too small.
    """
    config = configs[0]
    _check_equal(configs)
    noises = [noise_source(c.privacy.noise, c.seed, noise_key(c)) for c in configs]
    unreviewed = note(config)  # of the configuration as it was composed
    if config.algo.full_batch:
        configs = [replace(c, rounds=1) for c in configs]
        config = configs[0]
    task = _task_of(config) if config.env.kind == "text" else None
    if config.data.id is None:
        spec, data = env_spec(config.env), None
        configs = real_users.with_population(configs, spec)
        config = configs[0]
    else:
        spec, data, configs = _with_data(configs)
        config = configs[0]
    steps = user_steps(config.env, spec, data)
    round_steps = config.algo.round_steps(config.privacy.users_per_round, steps)
    rounds = config.rounds or config.total_steps // round_steps
    if rounds < 1:
        raise ConfigError(
            "total_steps",
            f"one round takes {config.privacy.users_per_round} users x {steps} steps = "
            f"{round_steps}, got {config.total_steps}",
        )
    if config.collector == "returning_users":
        configs = _with_people(configs, config.algo.people(rounds))
        config = configs[0]
    minibatches = getattr(config.algo, "minibatches", 1)
    pool = round_steps if _pooled(config) else steps
    pool = config.privacy.users_per_round if task is not None else pool
    if minibatches > pool:
        raise ConfigError(
            "algo.minibatches",
            f"must be at most the {pool} {'users' if task else 'steps'} it divides, got {minibatches}",
        )
    streams = [Streams(c.seed) for c in configs]
    ledgers = [Ledger(path) for path in ledger_paths]
    made = (configs, spec, steps, streams, ledgers, data, task, noises)
    algo, plan = _build(horizon or rounds, *made)
    allowed = rounds if horizon else min(_allowed(plan, r) for r in range(len(configs)))
    if allowed < rounds:
        rounds = allowed
        algo, plan = _build(rounds, *made)
    if data is None:
        real_users.check_enough(config, spec, rounds, round_steps)
    if task is not None:
        _check_prompts(config, task, rounds)
    for name in (RUNNING_OBS, RUNNING_REWARD):
        mode = config.env.obs_scaling if name == RUNNING_OBS else config.env.reward_scaling
        if mode == "running":
            plan.permit(name)
    plan.notes |= unreviewed
    iterations = rounds + algo.iterations_after
    return RunComponents(
        configs, spec, algo, plan, streams, steps, round_steps, rounds, iterations, data, task
    )


_TASKS: dict[
    str, TextTask
] = {}  # the last one opened: worlds, plans and runs of a process share it


def _task_of(config: RunConfig) -> TextTask:
    """Models and prompts of a text environment. Raises ConfigError."""
    key = repr((config.env, config.env.text))
    if key not in _TASKS:
        _TASKS.clear()
        _TASKS[key] = open_task(config.env)
    task = _TASKS[key].to(config.hardware.device)
    ok = config.eval.episodes <= len(task.prompts_eval)
    rule = f"at most the {len(task.prompts_eval)} prompts for evaluation of {config.env.label}"
    require("eval.episodes", ok, rule, config.eval.episodes)
    return task


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


def _with_data(configs: list[RunConfig]) -> tuple[EnvSpec, Dataset, list[RunConfig]]:
    """The dataset of an offline run, and what its configuration takes from it."""
    config = configs[0]
    free = (
        replace(config.env, obs_scaling="none") if config.env.obs_scaling == "split" else config.env
    )
    spec = env_spec(free)
    data = open_data(config.data, spec)
    env, people = scaled_by(config.env, data), config.privacy.population
    if config.privacy.sampling == "poisson" and (people or data.users) < data.users:
        raise ConfigError(
            "privacy.population",
            f"must be at least the {data.users} private users of {data.name}, got {people}",
        )
    found = []
    if config.algo.evaluator == "mspbe" and people not in (None, data.users):
        raise ConfigError(
            "privacy.population",
            f"is exact and public: the {data.users} private users of {data.name}, or unset; got {people}",
        )
    if isinstance(config.algo, EvaluationConfig):
        target, known = config.algo.target, data.trajectories.behavior_probs is not None
        if target not in (None, config.data.policy) and not known:
            raise ConfigError(
                "data.id",
                f"{data.name} has no behaviour probabilities, which importance ratios to algo.target={target} "
                "need; privrl-collect policy=... writes data with them",
            )
    for c in configs:
        privacy = c.privacy
        if privacy.drawn:
            privacy = replace(privacy, population=people or data.users)
        if privacy.sampling == "poisson":  # see `neighbours_of`
            privacy = replace(privacy, adjacency="zero_out")
        found.append(replace(c, env=env, privacy=privacy))
    return spec, data, found


def _pooled(config: RunConfig) -> bool:
    """Whether everybody's data make one row."""
    local = config.privacy.mechanism == "local"
    return config.privacy.pooled or (local and config.algo.pools_users)


def _with_people(configs: list[RunConfig], coming: int) -> list[RunConfig]:
    """Where users keep what they did: `population` bounds those who come; unset, it is their number.

    Raises ConfigError: it is no bound, or nobody would be drawn but everybody.
    """
    privacy = configs[0].privacy
    people = privacy.population or coming
    if people < coming:
        raise ConfigError(
            "privacy.population", f"must be at least the {coming} people who come, got {people}"
        )
    if privacy.users_per_round >= people:
        raise ConfigError(
            "privacy.users_per_round",
            f"must be less than the {people} people it is drawn from (privacy.population; unset: all who "
            f"come), got {privacy.users_per_round}",
        )
    return [replace(c, privacy=replace(c.privacy, population=people)) for c in configs]


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
    """Algorithm and plan of a run of so many rounds."""
    config = configs[0]
    at_home = config.privacy.mechanism == "local"
    privacy = PrivacyFacts(
        clip=config.privacy.clip,
        users=config.privacy.users_per_round,
        population=config.privacy.population or 0,
        mechanism=config.privacy.mechanism,
        z=tuple(0.0 if at_home else c.privacy.z for c in configs),  # of rows
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        learns_obs=config.env.obs_scaling == "private",
        learns_reward=config.env.reward_scaling == "private",
    )
    shape = BatchShape(1, 1, steps)
    sources = PublicSources(
        simulate=lambda policy, episodes: _nobodys(config, spec, policy, episodes, streams),
        transitions=None if data is None else DatasetCollector(data, config.env, shape).public(),
        task=task,
        ask=None if task is None else public_answers(task, streams),
    )
    setup = AlgorithmContext(
        spec=spec,
        rounds=rounds,
        privacy=privacy,
        sources=sources,
        device=config.hardware.device,
        env=config.env,
        behavior_policy=config.data.policy,
    )
    build: Any = algorithm(config.algo.name)
    algo: Algorithm = build(config.algo, setup)
    poisson = config.privacy.sampling == "poisson"
    many = data is not None and data.most > 1  # then a user is more than one trajectory
    who = spec.one_user
    given = unit_of(config.env, spec.max_episode_steps, steps, poisson, data, who)
    unit = (None if many else algo.unit()) or given
    devices = None
    if at_home:
        noised = config.privacy.rewards == "noised"
        unit = local_unit(config.env, spec.max_episode_steps, steps, noised, who)
        devices = LocalNoise(
            ranges_of(config.env, spec.obs_dim, noised),
            [c.privacy.z for c in configs],
            config.privacy.users_per_round,
            steps,
            config.env.user,
            spec.max_episode_steps,
        )
    plan = Gate(
        configs=[c.privacy for c in configs],
        blocks=algo.blocks(),
        unit=unit,
        rounds=rounds,
        noises=noises,
        ledgers=ledgers,
        caveats=caveats_of(config, algo),
        notes={**notes_of(config, spec, data), **algo.notes()},
        local=devices,
        pooled=_pooled(config),
    )
    return algo, plan


def _allowed(plan: Gate, r: int) -> int:
    """How many of the planned rounds `privacy.epsilon` allows. Raises ConfigError: not even one."""
    budget = plan.configs[r].epsilon
    if budget is None:
        return plan.rounds
    allowed = affordable(plan, r, budget)
    if allowed:
        return allowed
    more = "use a larger budget: no privacy.z is enough by this accountant"
    with suppress(PrivacyError):
        more = f"privacy.z={needed_z(plan, r, budget):g} would last for the whole run"
    raise ConfigError(
        "privacy.epsilon",
        f"z = {plan.configs[r].z:g} costs more than {shown_epsilon(budget)} at once; {more}",
    )


def _nobodys(
    config: RunConfig, spec: EnvSpec, policy: Policy, episodes: int, streams: list[Streams]
) -> Callable[[Tensor, int], UserBatch]:
    """Whole episodes of a released policy, simulated, on streams that no user has."""
    env = replace(config.env, user="episode", user_steps=None)
    aside = [s.public for s in streams]
    rollout = SimulatedCollector(
        env, spec, policy, aside, episodes, spec.max_episode_steps, config.algo.gamma
    )
    everyone = Cohort([episodes] * len(aside), None)
    return lambda actor, index: rollout.collect(actor, index, everyone)


def _check_equal(configs: list[RunConfig]) -> None:
    if len({group_key(config) for config in configs}) > 1:
        raise ConfigError("", "runs trained together may differ in seed and privacy.z only")


def describe_plan(parts: RunComponents, r: int) -> dict[str, Any]:
    """The plan of replica r as `plan.json` holds it."""
    plan, config = parts.plan, parts.configs[r]
    devices = {} if plan.local is None else {"local": local_plan(plan.local, config.privacy.z, r)}
    return {
        "algo": config.algo.name,
        "env": config.env.label,
        "seed": config.seed,
        "z": config.privacy.z if config.privacy.mechanism != "none" else None,
        "epsilon": plan.planned_epsilon(r),
        "epsilon_paper": plan.paper_epsilon(r),
        "delta": config.privacy.delta,
        "guarantee": plan.guarantee(r).to_dict(),
        "rounds": parts.rounds,
        "releases": parts.rounds,
        "releases_per_user": plan.participation or parts.rounds,
        "users_per_round": config.privacy.users_per_round,
        "users": real_users.needed(config, parts.rounds),
        "steps_per_user": parts.steps,
        "steps": parts.rounds * parts.round_steps,
        "parameters": {block.name: block.size for block in plan.blocks},
        "clip": {block.name: block.clip for block in plan.blocks},
        "event": plan.event(r).to_dict(),
        **({} if parts.data is None else {"data": parts.data.describe()}),
        **devices,
    }


def local_plan(devices: LocalNoise, z: float, r: int) -> dict[str, Any]:
    """The most that devices of replica r tell of one unit in a round, and mu: of one observation, of all."""
    return {
        "mu_per_observation": devices.ranges.mu(z, 1),
        "observations": devices.observations,
        "noised_rewards": devices.rewards,
        "mu": devices.mu(r),
    }
