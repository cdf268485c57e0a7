"""Settings of the command line that the rest of the configuration would ignore or contradict.

A value of a YAML file may be without effect in some run; one that the user gives must have one.
"""

from __future__ import annotations

from collections.abc import Collection

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError


def check_explicit(run: RunConfig, keys: Collection[str]) -> None:
    """Raise `ConfigError` for a given key that has no effect, or for two that contradict each other.

    Args:
        run: the checked configuration.
        keys: the keys and groups that the command line gives.
    """
    _check_length(run, keys)
    env = run.env
    if "env.user_steps" in keys and env.user == "episode" and env.user_steps is not None:
        raise ConfigError(
            "env.user_steps",
            "has no effect with env.user=episode, where a user is one whole episode; use "
            "env.user=fresh, or env.max_episode_steps to make episodes shorter",
        )
    for key in ("domain", "task"):
        if f"env.{key}" in keys and env.kind != "dmc":
            raise ConfigError(
                f"env.{key}", f"is for dm_control, env={env.name} is not: use env=dmc"
            )
    if "env.id" in keys and env.kind != "gym":
        raise ConfigError("env.id", f"is a Gymnasium id, env={env.name} has none: use env=gym")
    texts = sorted(key for key in keys if key.startswith("env.text."))
    if texts and env.kind != "text":
        raise ConfigError(texts[0], f"is for texts, env={env.name} has none: use env=sentiment")
    for key in ("public", "users"):
        if f"data.{key}" in keys and run.data.id is None:
            raise ConfigError(f"data.{key}", "splits a dataset, and there is none: set data.id")
    for key in ("obs_mean", "obs_std"):
        given = f"env.{key}" in keys and getattr(env, key) is not None
        if given and env.obs_scaling not in ("public", "private"):
            raise ConfigError(
                f"env.{key}", f"has no effect with env.obs_scaling={env.obs_scaling}; use public"
            )


def _check_length(run: RunConfig, keys: Collection[str]) -> None:
    """`rounds` and `total_steps`, where both are given. Raises `ConfigError`."""
    if not {"rounds", "total_steps"} <= set(keys) or run.rounds is None:
        return
    steps = _user_steps(run)
    if steps is None:
        raise ConfigError(
            "total_steps",
            f"and rounds={run.rounds} both say how long the run is, and the steps of one round depend on "
            "the environment; give one of them",
        )
    round_steps = run.algo.round_steps(run.privacy.users_per_round, steps)
    if run.total_steps // round_steps != run.rounds:
        raise ConfigError(
            "total_steps",
            f"contradicts rounds: {run.rounds} rounds of {round_steps} steps are "
            f"{run.rounds * round_steps} steps, got {run.total_steps}; give one of them",
        )


def _user_steps(run: RunConfig) -> int | None:
    """T where the configuration alone says it; None where the environment or the data do."""
    if run.env.kind == "text":
        return run.env.text.new_tokens
    if run.data.id is not None:
        return None
    if run.env.user == "episode" or run.env.user_steps is None:
        return run.env.max_episode_steps
    return run.env.user_steps
