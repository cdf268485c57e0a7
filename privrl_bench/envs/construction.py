"""Construction and checks of a single Gymnasium or dm_control environment."""

from __future__ import annotations

import functools
import math
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs import simulated
from privrl_bench.envs.backends import dmc_id
from privrl_bench.envs.slots import log_mujoco_warnings
from privrl_bench.envs.spaces import check_shape, check_spaces, select_parts
from privrl_bench.envs.wrappers import NewEachEpisode, import_module, what, wrapped
from privrl_bench.errors import ConfigError, first_line, suggest

_SHOWN: set[tuple[type[Warning], str]] = set()
# Beginning of an id -> the module that registers it, the package that has the module.
_PACKAGES = {
    r"ALE/|[A-Z]\w+(NoFrameskip|Deterministic)-v|[A-Z]\w+-ram-v": ("ale_py", "ale-py"),
    r"MiniGrid-|BabyAI-": ("minigrid", "minigrid"),
    r"Fetch|Hand(Reach|Manip)|AntMaze|PointMaze|Adroit|FrankaKitchen": (
        *("gymnasium_robotics", "gymnasium-robotics"),
    ),
    r"(highway|merge|roundabout|parking|intersection|racetrack)-": ("highway_env", "highway-env"),
    r"mo-": ("mo_gymnasium", "mo-gymnasium"),
}
_NEAR = 0.8  # similarity from which an id is suggested; short ids of other tasks are similar


def make_env(config: EnvConfig) -> Any:
    """Make an environment with flat real observations, and actions that policies here can choose.

    Observations are those of `env.obs_parts`. `original_space` is theirs before flattening.

    Raises:
        ConfigError: The environment cannot be made, or its spaces are not supported.
    """
    env = make_unchecked(config)
    try:
        if config.obs_parts is not None:
            env = select_parts(env, config.obs_parts, config.label)
        check_spaces(env, config.label)
    except ConfigError:
        env.close()
        raise
    if not isinstance(env.observation_space, gym.spaces.Box):
        env = gym.wrappers.FlattenObservation(env)
    return env


def make_unchecked(config: EnvConfig) -> Any:
    """Make an environment and its wrappers, with the spaces that they have.

    Raises:
        ConfigError: They cannot be made.
    """
    if not simulated(config.kind):
        raise ConfigError(
            "env",
            f"{config.name} has no simulator (env.kind={config.kind}); dp_fqe, dp_is estimate values of logs",
        )
    make = functools.partial(_make_dmc if config.kind == "dmc" else _make_gym, config)
    if not config.wrappers:
        return make()
    return NewEachEpisode(functools.partial(wrapped, make, config.wrappers))


def original_space(env: Any) -> Any:
    """The observation space of an environment from `make_env` before it is flattened."""
    flattened = isinstance(env, gym.wrappers.FlattenObservation)
    return env.env.observation_space if flattened else env.observation_space


def check_reset(config: EnvConfig, env: Any) -> None:
    """Reset a new environment once, as a run does.

    Args:
        config: Its settings.
        env: From `make_env`, not used for anything else.

    Raises:
        ConfigError: The reset fails, or its observation has the wrong shape.
    """
    try:
        obs, _ = env.reset(seed=0)
        shape = np.shape(obs)
    except Exception as error:  # the user's own code
        raise ConfigError(
            "env.id", f"the first reset of {config.label} raised {what(error)}"
        ) from error
    check_shape(env, shape, config.label)


def max_episode_steps(config: EnvConfig, env: Any) -> int:
    """Public upper bound of the steps of an episode. Raises ConfigError: there is none."""
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    if env.spec is not None and env.spec.max_episode_steps:
        return int(env.spec.max_episode_steps)
    inner = getattr(env.unwrapped, "_env", None)  # dm_control's limit is in the suite's object
    steps = getattr(inner, "_step_limit", math.inf)
    if math.isfinite(steps):
        return math.ceil(steps)
    own = getattr(env.unwrapped, "max_steps", None)  # MiniGrid's limit, which it keeps by itself
    if isinstance(own, int) and own > 0:
        return own
    raise ConfigError(
        "env.max_episode_steps",
        f"{config.label} has no time limit; set a public one, e.g. 1000",
    )


def _make_gym(config: EnvConfig) -> Any:
    """Make a Gymnasium environment. `package:Name-v0` imports the package first."""
    name = str(config.id)
    if ":" in name:
        module = name.split(":", 1)[0]
        package = dict(_PACKAGES.values()).get(module)
        import_module(module, "env.id", f"pip install {package}" if package else "")
    known = gym.registry.get(name.split(":")[-1])
    if known is not None and "mujoco" in str(known.entry_point):
        log_mujoco_warnings()
    owner = next((found for start, found in _PACKAGES.items() if re.match(start, name)), None)
    try:
        return _made(config, name)
    except gym.error.DependencyNotInstalled as error:
        extra = re.search(r"gymnasium\[[\w-]+\]", str(error))
        install = f'; pip install "{extra[0]}"' if extra else ""
        raise ConfigError(
            "env.id",
            f"{name} needs a package that is not installed{install} ({first_line(error).rstrip('.')})",
        ) from None
    except gym.error.NamespaceNotFound:
        if owner is not None:
            raise _of_package(name, *owner) from None
        raise ConfigError(
            "env.id",
            f"no environment {name!r} is registered; name the package that registers it, "
            f"e.g. env.id=my_package:{name}",
        ) from None
    except gym.error.Error as error:
        if owner is not None and isinstance(error, gym.error.NameNotFound):
            raise _of_package(name, *owner) from None
        near = suggest(name.split(":")[-1], gym.registry.keys() - {name.split(":")[-1]}, _NEAR)
        said = first_line(error).rstrip(".")
        if near:  # one suggestion is enough, and ours has the version
            said = said.partition(" Did you mean")[0].rstrip(".")
        more = "" if ":" in name else f"; for an environment of a package: env.id=my_package:{name}"
        raise ConfigError("env.id", f"Gymnasium cannot make {name!r}{near}: {said}{more}") from None


def _of_package(name: str, module: str, package: str) -> ConfigError:
    """The error for an id that a known package registers."""
    how = f"pip install {package}, then env.id={module}:{name}"
    return ConfigError("env.id", f"{name!r} is an environment of the package {package}: {how}")


def _make_dmc(config: EnvConfig) -> Any:
    """Make a dm_control suite task as a Gymnasium environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing display; nothing is rendered
        try:
            import shimmy
            from dm_control import suite
        except ImportError:
            version = ".".join(map(str, sys.version_info[:2]))
            why = f"dm_control is not installed (it needs Python 3.11 or 3.12; this is {version})"
            raise ConfigError("env", why) from None

    log_mujoco_warnings()
    domains = sorted({domain for domain, _ in suite.ALL_TASKS})
    domain, task = str(config.domain), str(config.task)
    if domain not in domains:
        raise ConfigError(
            "env.domain",
            f"dm_control has no {domain!r}{suggest(domain, domains)}; allowed: {', '.join(domains)}",
        )
    tasks = sorted(t for d, t in suite.ALL_TASKS if d == domain)
    if task not in tasks:
        raise ConfigError(
            "env.task",
            f"{domain} has no {task!r}{suggest(task, tasks)}; allowed: {', '.join(tasks)}",
        )
    gym.register_envs(shimmy)
    return _made(config, dmc_id(config))


def _made(config: EnvConfig, name: str) -> Any:
    """Call `gymnasium.make`; show its warnings if it succeeds.

    Raises:
        gymnasium.error.Error: About the id.
        ConfigError: Any other failure.
    """

    def make() -> Any:
        return gym.make(
            name,
            max_episode_steps=config.max_episode_steps,
            disable_env_checker=True,
            **config.kwargs,
        )

    try:
        env = _warning_afterwards(make)
        _check_has_spaces(env, name)
        return env
    except (gym.error.Error, ConfigError):
        raise
    except TypeError as error:
        key = "env.kwargs" if config.kwargs else "env.id"
        raise ConfigError(key, f"{name} cannot be made with {config.kwargs}: {error}") from error
    except (Exception, SystemExit) as error:  # the environment's own code
        given = f" with env.kwargs={config.kwargs}" if config.kwargs else ""
        raise ConfigError("env.id", f"making {name}{given} raised {what(error)}") from error


def _check_has_spaces(env: Any, name: str) -> None:
    """Raise `ConfigError` unless an environment has both spaces."""
    for space in ("observation_space", "action_space"):
        if getattr(env, space, None) is None:
            env.close()
            raise ConfigError("env.id", f"{name} has no {space}; set self.{space} in its __init__")


def _warning_afterwards(make: Callable[[], Any]) -> Any:
    """Call `make` and show each of its warnings once per process."""
    with warnings.catch_warnings(record=True) as caught:
        made = make()
    for warning in caught:
        kind = (warning.category, str(warning.message))
        if kind in _SHOWN:
            continue
        _SHOWN.add(kind)
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return made
