"""The kind of an environment, for values that were tuned for no single one."""

from __future__ import annotations

from typing import Any

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.construction import make_env, max_episode_steps
from privrl_bench.errors import ConfigError

LONG = 200  # steps of an episode above which it is long
# The settings that decide about the kind.
_KEYS = (
    "name",
    "kind",
    "id",
    "domain",
    "task",
    "kwargs",
    "max_episode_steps",
    "obs_parts",
    "wrappers",
)
_KNOWN: dict[str, str | None] = {}


def kind_of(settings: dict[str, Any]) -> str | None:
    """The kind of an environment: `discrete_short`, `discrete_long`, `continuous_short`, `continuous_long`.

    It is made, but neither reset nor stepped.

    Args:
        settings: the section `env` of a configuration.

    Returns:
        The kind; None: the environment cannot be made, or has no time limit.
    """
    chosen = {key: settings.get(key) for key in _KEYS}
    if repr(chosen) not in _KNOWN:
        _KNOWN[repr(chosen)] = _kind(chosen)
    return _KNOWN[repr(chosen)]


def _kind(settings: dict[str, Any]) -> str | None:
    try:
        config = EnvConfig(**settings)
        env = make_env(config)
    except ConfigError:
        return None
    try:
        steps = max_episode_steps(config, env)
        actions = "continuous" if hasattr(env.action_space, "low") else "discrete"
        return f"{actions}_{'long' if steps > LONG else 'short'}"
    except ConfigError:
        return None
    finally:
        env.close()
