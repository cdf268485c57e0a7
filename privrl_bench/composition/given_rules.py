"""Rules of what the command line gives.

A value of a YAML file may be without effect in some run, but one that the user gives must have an effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.schema.run import AUTO, EVALUATIONS
from privrl_bench.errors import ConfigError, refuse
from privrl_bench.privacy import mechanisms
from privrl_bench.privacy.rules import rules, taking, unused
from privrl_bench.users import kind_of


def check_explicit(run: RunConfig, keys: Collection[str]) -> None:
    """Refuse a given key that has no effect, and two that contradict each other. Raises `ConfigError`.

    Args:
        run: the checked configuration.
        keys: the keys and groups that the command line gives.
    """
    for rule in RULES_FOR_GIVEN_KEYS:
        rule(run, keys)


def check_private(algo: Any, privacy: Mapping[str, Any], keys: Collection[str]) -> None:
    """Refuse what asks for privacy of an algorithm that has none, before values are checked.

    Args:
        algo: the class of its settings, an `AlgoConfig`.
        privacy: the section `privacy` of the composed configuration.
        keys: see `check_explicit`.

    Raises:
        ConfigError: names a key that asks for it, and a private algorithm.
    """
    if any(kind.private and not kind.imitation for kind in taking(algo.traits.sends)):
        return
    if privacy["mechanism"] not in mechanisms.names():
        return  # refused with the other choices
    chosen = mechanisms.mechanism_class(privacy["mechanism"])
    if chosen.on_devices or chosen.imitation:
        return
    asks = [name for name in _ASK if f"privacy.{name}" in keys]
    asks = [name for name in asks if privacy[name] != _NONE_ASKED.get(name, _ASK)]
    key = "privacy" if chosen.private else f"privacy.{asks[0]}" if asks else ""
    noised = algo.traits.noised_observations
    more = ", or privacy=local (noise on users' observations)" if noised else ""
    other = f"algo={algo.traits.private_version}"
    refuse(
        bool(key),
        key,
        f"algo={algo().name} is not private; for a private run use {other}{more}; "
        "one to compare with is a command of its own",
    )


# Keys of `privacy` that ask for it, and values that do not. How a guarantee is stated, and where noise comes
# from, may be given for the baselines of a sweep, too.
_ASK = ("epsilon", "z", "noise_cohort", "clip", "correlation", "bands")
_NONE_ASKED = {"epsilon": None, "z": 0.0}


def as_given(run: RunConfig, keys: Collection[str]) -> RunConfig:
    """`run` without values of YAML files that contradict what the command line asks for; checked.

    An epsilon without a z is a target: z is calibrated for it (`privacy.z=auto`). A population without a length
    is a limit: there are at most as many rounds as it has users for.

    Args:
        run: the checked configuration.
        keys: see `check_explicit`, which is called.
    """
    privacy = run.privacy
    target = "privacy.epsilon" in keys and "privacy.z" not in keys and privacy.epsilon is not None
    if target and rules(privacy).mechanism.calibrated:
        run = replace(run, privacy=replace(privacy, z=None))
    length = {"rounds", "total_steps", "fit_population"} & set(keys)
    if "privacy.population" in keys and not length and not rules(privacy).sampler.every_round:
        run = replace(run, fit_population=privacy.population is not None)
    check_explicit(run, keys)
    return run


def _length(run: RunConfig, keys: Collection[str]) -> None:
    """`rounds` and `total_steps` agree where both are given."""
    if not {"rounds", "total_steps"} <= set(keys) or run.rounds is None:
        return
    size = kind_of(run).size_of(run)
    if not size.steps:
        raise ConfigError(
            "total_steps",
            f"and rounds={run.rounds} both give the length of the run, and the steps of one round depend on "
            "the environment; give one of them",
        )
    round_steps = size.round_steps
    refuse(
        run.total_steps // round_steps != run.rounds,
        "total_steps",
        f"contradicts rounds: {run.rounds} rounds of {round_steps} steps are "
        f"{run.rounds * round_steps} steps, got {run.total_steps}; give one of them",
    )


def _given_env(run: RunConfig, keys: Collection[str]) -> None:
    """Keys of the environment belong to its kind, and have an effect."""
    env = run.env
    refuse(
        "env.user_steps" in keys and env.user == "episode" and env.user_steps is not None,
        "env.user_steps",
        "has no effect with env.user=episode, where a user is one whole episode; use env.user=fresh, "
        "or env.max_episode_steps to make episodes shorter",
    )
    for key in ("env.domain", "env.task"):
        needs = f"is for dm_control, env={env.name} is not: use env=dmc"
        refuse(key in keys and env.kind != "dmc", key, needs)
    needs = f"is a Gymnasium id, env={env.name} has none: use env=gym"
    refuse("env.id" in keys and env.kind != "gym", "env.id", needs)
    for name in ("obs_mean", "obs_std"):
        given = f"env.{name}" in keys and getattr(env, name) is not None
        refuse(
            given and env.obs_scaling not in ("public", "private"),
            f"env.{name}",
            f"has no effect with env.obs_scaling={env.obs_scaling}; use public",
        )


def _given_users(run: RunConfig, keys: Collection[str]) -> None:
    """A key has an effect with such users."""
    none = "splits a dataset, and there is none: set data.id"
    texts = f"is for texts, env={run.env.name} has none: use env=sentiment"
    split = dict.fromkeys(("data.public", "data.users", "data.part"), none)
    for begin, why in {"env.text.": texts, **split}.items():
        unread = [x for x in keys if x.startswith(begin) and not x.startswith(kind_of(run).reads)]
        for key in sorted(unread):
            raise ConfigError(key, why)


def _given_algo(run: RunConfig, keys: Collection[str]) -> None:
    """A setting of the algorithm has an effect, or the value that the algorithm has by itself."""
    algo = run.algo
    for name, (switch, needed) in algo.traits.only_with.items():
        value, plain, now = getattr(algo, name), getattr(type(algo), name), getattr(algo, switch)
        without, use = (f"algo.{switch}={str(x).lower()}" for x in (now, needed))
        refuse(
            f"algo.{name}" in keys and value != plain and now != needed,
            f"algo.{name}",
            f"has no effect with {without}; use {use}, or algo.{name}={plain}, got {value}",
        )


def _given_noise(run: RunConfig, keys: Collection[str]) -> None:
    """Settings of another mechanism have no effect."""
    for key in unused(run.privacy):
        why = f"privacy.mechanism={run.privacy.mechanism} does not read it"
        refuse(key in keys, key, why)


def _given_end(run: RunConfig, keys: Collection[str]) -> None:
    """A run that may end early has enough evaluations to decide that."""
    evaluation = run.eval
    refuse(
        evaluation.solved is not None
        and evaluation.every == AUTO
        and evaluation.window > EVALUATIONS,
        "eval.solved",
        f"needs the mean of eval.window={evaluation.window} evaluations, and eval.every=auto makes at most "
        f"{EVALUATIONS}; set eval.every to a number of steps, or eval.window",
    )


RULES_FOR_GIVEN_KEYS = (_length, _given_env, _given_users, _given_algo, _given_noise, _given_end)
