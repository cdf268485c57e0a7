"""Rules between the sections of a run. Ranges of single settings are declared beside them: `ranges.py`.

`RULES` hold for every run. `RULES_FOR_GIVEN_KEYS` hold for what the command line gives: a value of a YAML file
may be without effect in some run, but one that the user gives must have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.config.schema.env import EnvConfig
from privrl_bench.config.schema.privacy import privacy_rules
from privrl_bench.errors import ConfigError, require, require_among, require_choice

if TYPE_CHECKING:
    from privrl_bench.config.schema.run import RunConfig
    from privrl_bench.privacy.sampling.sampler import Sampler

AUTO = "auto"  # value of eval.every
EVALUATIONS = 20  # of a run with it, where it has as many rounds; the initial one apart

# AlgoConfig.collectors -> which samplers it can carry out
SAMPLERS_OF: dict[str, Callable[[type[Sampler]], bool]] = {
    "simulated": lambda sampler: not sampler.exact,
    "returning_users": lambda sampler: sampler.independent,
    "dataset": lambda sampler: True,
    "behavior": lambda sampler: sampler.exact or not sampler.every_round,
    "prompts": lambda sampler: not sampler.every_round,
}


def check_run(run: RunConfig) -> None:
    """Refuse combinations of settings that have no meaning or no analysis. Raises `ConfigError`."""
    for rule in RULES:
        rule(run)


def check_explicit(run: RunConfig, keys: Collection[str]) -> None:
    """Refuse a given key that has no effect, and two that contradict each other. Raises `ConfigError`.

    Args:
        run: the checked configuration.
        keys: the keys and groups that the command line gives.
    """
    for rule in RULES_FOR_GIVEN_KEYS:
        rule(run, keys)


def as_asked(run: RunConfig, keys: Collection[str]) -> RunConfig:
    """`run` without values of YAML files that contradict what the command line asks for; checked.

    An epsilon without a z is a target: z is calibrated for it (`privacy.z=auto`). A population without a length
    is a limit: there are at most as many rounds as it has users for.

    Args:
        run: the checked configuration.
        keys: see `check_explicit`, which is called.
    """
    privacy = run.privacy
    target = "privacy.epsilon" in keys and "privacy.z" not in keys and privacy.epsilon is not None
    if target and privacy.rules.mechanism.calibrated:
        run = replace(run, privacy=replace(privacy, z=None))
    length = {"rounds", "total_steps", "fit_population"} & set(keys)
    if "privacy.population" in keys and not length and not privacy.rules.sampler.every_round:
        run = replace(run, fit_population=privacy.population is not None)
    check_explicit(run, keys)
    return run


def _refuse(when: bool, key: str, problem: str) -> None:
    if when:
        raise ConfigError(key, problem)


def _takes(run: RunConfig, key: str, value: str, allowed: tuple[str, ...]) -> None:
    require_among(key, value, allowed, f"algo={run.algo.name} takes")


# --- rules of every run


def _prompts(run: RunConfig) -> None:
    """Prompts and an algorithm that answers them go together."""
    texts, answers = run.env.kind == "text", "prompts" in run.algo.collectors
    _refuse(
        texts and not answers,
        "env",
        f"{run.env.name} is prompts and answers, from which algo={run.algo.name} does not learn; "
        "use algo=dppg or algo=ppo",
    )
    _refuse(
        answers and not texts,
        "env",
        f"{run.env.label} has no prompts, which algo={run.algo.name} answers",
    )


def _text_settings(run: RunConfig) -> None:
    """Settings that have no meaning for texts stay at their defaults."""
    if run.env.kind != "text":
        return
    if run.privacy.rules.mechanism.on_devices:
        raise ConfigError("privacy", "local adds noise to numbers, and a text has none")
    plain = EnvConfig(id="any")
    keys = ("domain", "task", "kwargs", "backend", "obs_mean", "obs_std", "action")
    for key in (*keys, "reward_scale", "obs_low", "obs_high", "reward_low", "reward_high"):
        value = getattr(run.env, key)
        require(f"env.{key}", value == getattr(plain, key), "left out for texts", value)
    require_choice("eval.policy", run.eval.policy, ("stochastic",))


def _mechanism(run: RunConfig) -> None:
    """The algorithm can be used with the mechanism."""
    algo, mechanism = run.algo, run.privacy.rules.mechanism
    if mechanism.on_devices:
        offline = run.collector == "dataset"
        why = "learns from a dataset" if offline else "needs the gate's clip and noise"
        _refuse(
            offline or not algo.takes_noised_observations,
            "privacy",
            f"local is noise on live users' devices, but algo={algo.name} {why}",
        )
        return
    taken = privacy_rules().kinds(algo.mechanisms)
    _refuse(
        not any(kind.private for kind in taken) and mechanism.private,
        "privacy",
        f"algo={algo.name} trains on the pooled data of all users and cannot be private; use "
        "privacy=none, privacy=local (noise on users' observations), or algo=dppg for a private run",
    )
    _refuse(
        all(kind.calibrated for kind in taken) and not mechanism.private,
        "privacy",
        f"algo={algo.name} is private by construction; for a run without noise use privacy.z=0, "
        "for a non-private baseline algo=ppo or algo=a2c",
    )
    if mechanism.like not in algo.mechanisms:
        _takes(run, "privacy.mechanism", mechanism.name, algo.mechanisms)


def _noise(run: RunConfig) -> None:
    """Without a mechanism there is no noise."""
    z = run.privacy.z
    if not run.privacy.rules.mechanism.private and z:
        raise ConfigError("privacy.z", f"privacy=none adds no noise, so it must be 0, got {z:g}")


def _sampling(run: RunConfig) -> None:
    """The algorithm and its collector can be used with the sampling."""
    mechanism, sampler = run.privacy.rules
    allowed = privacy_rules().samplings(SAMPLERS_OF[run.collector])
    _takes(
        run,
        "privacy.sampling",
        sampler.name,
        tuple(name for name in run.algo.samplings if name in allowed),
    )
    learns = run.collector == "dataset" and run.algo.evaluator != "mspbe"
    if learns and mechanism.private and not sampler.independent:
        raise ConfigError(
            "privacy.sampling", f"algo={run.algo.name} draws its users: use privacy=poisson"
        )
    _refuse(
        sampler.independent and run.env.user == "segment",
        "env.user",
        "with privacy.sampling=poisson users come and go, so a user must start from a reset: use "
        "fresh or episode, got 'segment'",
    )


def _population(run: RunConfig) -> None:
    """A bound on the users of fixed cohorts bounds live users that are used once."""
    privacy = run.privacy
    offline = run.collector == "dataset" and run.algo.evaluator != "mspbe"
    bounded = not privacy.rules.sampler.every_round and privacy.population is not None
    why = f"algo={run.algo.name} takes from a dataset" if offline else "env.user=segment has"
    _refuse(
        bounded and (offline or run.env.user == "segment"),
        "privacy.population",
        f"bounds the users of fixed cohorts, each used once, and {why} others",
    )
    how = f"limits users that are used once; privacy.sampling={privacy.sampling} draws them"
    _refuse(run.fit_population and privacy.rules.sampler.every_round, "fit_population", how)


def _unit(run: RunConfig) -> None:
    """The algorithm can be used with the definition of a user."""
    _takes(run, "env.user", run.env.user, run.algo.units)


def _evaluated_policy(run: RunConfig) -> None:
    """A policy that acted, and its users, where an algorithm evaluates one, and nowhere else."""
    algo = run.algo
    if "behavior" not in algo.collectors:
        _refuse(
            run.data.policy is not None, "data.policy", f"algo={algo.name} learns its own policy"
        )
        return
    _refuse(
        run.data.policy is None,
        "data.policy",
        f"algo={algo.name} evaluates from the trajectories of a known policy: give it, e.g. "
        "data.policy=uniform (with a dataset, too: errors are measured under it)",
    )
    _refuse(
        run.collector == "behavior" and run.privacy.population is None,
        "privacy.population",
        "give the number of users that act with data.policy, e.g. privacy.population=1000",
    )
    _refuse(
        run.env.obs_scaling != "none",
        "env.obs_scaling",
        f"algo={algo.name} computes features of unscaled observations: none, got "
        f"{run.env.obs_scaling!r}",
    )
    _refuse(
        run.env.reward_scaling not in ("none", "public"),
        "env.reward_scaling",
        "to evaluate a policy use none or public",
    )
    _refuse(
        algo.full_batch and run.rounds not in (None, 1),
        "rounds",
        f"algo={algo.name} has one release, got {run.rounds}",
    )


def _dataset(run: RunConfig) -> None:
    """A dataset where one is needed, and nowhere else."""
    algo = run.algo
    _refuse(
        run.collector == "dataset" and run.data.id is None,
        "data.id",
        f"algo={algo.name} learns from a dataset: data.id=<a local Minari dataset>; "
        "privrl-collect makes one",
    )
    _refuse(
        run.data.id is not None and "dataset" not in algo.collectors,
        "data.id",
        f"algo={algo.name} learns from live users and takes no dataset",
    )


def _scaling(run: RunConfig) -> None:
    """Scaling by users' data is in the release, or in the public part of a dataset."""
    obs, reward = run.env.obs_scaling, run.env.reward_scaling
    offline = run.collector == "dataset"
    _refuse(
        obs == "split" and not offline,
        "env.obs_scaling",
        "split is the public part of a dataset; without data.id use public, private, running or none",
    )
    _refuse(
        offline and bool({"private", "running"} & {obs, reward}),
        "env.obs_scaling",
        "for a dataset use split, public or none; reward_scaling: public",
    )
    for key, value in (("obs_scaling", obs), ("reward_scaling", reward)):
        _refuse(
            value == "private" and not run.algo.learns_scaling,
            f"env.{key}",
            f"private is a block of a private release, which algo={run.algo.name} does not make; "
            "use public, running or none",
        )


RULES = (
    *(_prompts, _text_settings, _mechanism, _dataset, _unit, _sampling, _evaluated_policy),
    *(_scaling, _population, _noise),
)


# --- rules of what the command line gives


def _length(run: RunConfig, keys: Collection[str]) -> None:
    """`rounds` and `total_steps` agree where both are given."""
    if not {"rounds", "total_steps"} <= set(keys) or run.rounds is None:
        return
    steps = _user_steps(run)
    if steps is None:
        raise ConfigError(
            "total_steps",
            f"and rounds={run.rounds} both give the length of the run, and the steps of one round depend on "
            "the environment; give one of them",
        )
    round_steps = run.algo.round_steps(run.privacy.users_per_round, steps)
    _refuse(
        run.total_steps // round_steps != run.rounds,
        "total_steps",
        f"contradicts rounds: {run.rounds} rounds of {round_steps} steps are "
        f"{run.rounds * round_steps} steps, got {run.total_steps}; give one of them",
    )


def _user_steps(run: RunConfig) -> int | None:
    """T where the configuration alone gives it; None where the environment or the data do."""
    if run.env.kind == "text":
        return run.env.text.new_tokens
    if run.data.id is not None:
        return None
    if run.env.user == "episode" or run.env.user_steps is None:
        return run.env.max_episode_steps
    return run.env.user_steps


def _given_env(run: RunConfig, keys: Collection[str]) -> None:
    """Keys of the environment belong to its kind, and have an effect."""
    env = run.env
    _refuse(
        "env.user_steps" in keys and env.user == "episode" and env.user_steps is not None,
        "env.user_steps",
        "has no effect with env.user=episode, where a user is one whole episode; use env.user=fresh, "
        "or env.max_episode_steps to make episodes shorter",
    )
    for key in ("env.domain", "env.task"):
        needs = f"is for dm_control, env={env.name} is not: use env=dmc"
        _refuse(key in keys and env.kind != "dmc", key, needs)
    needs = f"is a Gymnasium id, env={env.name} has none: use env=gym"
    _refuse("env.id" in keys and env.kind != "gym", "env.id", needs)
    for key in sorted(key for key in keys if key.startswith("env.text.")):
        needs = f"is for texts, env={env.name} has none: use env=sentiment"
        _refuse(env.kind != "text", key, needs)
    for name in ("obs_mean", "obs_std"):
        given = f"env.{name}" in keys and getattr(env, name) is not None
        _refuse(
            given and env.obs_scaling not in ("public", "private"),
            f"env.{name}",
            f"has no effect with env.obs_scaling={env.obs_scaling}; use public",
        )


def _given_data(run: RunConfig, keys: Collection[str]) -> None:
    """A split needs a dataset."""
    for key in ("data.public", "data.users"):
        needs = "splits a dataset, and there is none: set data.id"
        _refuse(key in keys and run.data.id is None, key, needs)


def _given_noise(run: RunConfig, keys: Collection[str]) -> None:
    """Settings of another mechanism have no effect."""
    for key in privacy_rules().unused(run.privacy):
        why = f"privacy.mechanism={run.privacy.mechanism} does not read it"
        _refuse(key in keys, key, why)


def _given_end(run: RunConfig, keys: Collection[str]) -> None:
    """A run that may end early has enough evaluations to decide that."""
    evaluation = run.eval
    _refuse(
        evaluation.solved is not None
        and evaluation.every == AUTO
        and evaluation.window > EVALUATIONS,
        "eval.solved",
        f"needs the mean of eval.window={evaluation.window} evaluations, and eval.every=auto makes at most "
        f"{EVALUATIONS}; set eval.every to a number of steps, or eval.window",
    )


RULES_FOR_GIVEN_KEYS = (_length, _given_env, _given_data, _given_noise, _given_end)
