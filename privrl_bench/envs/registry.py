"""Construction of environments and their public facts from an `EnvConfig`."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.construction import check_reset, dmc_id, make_env
from privrl_bench.envs.registration import NAMESPACE, OWN, slots_class
from privrl_bench.envs.slots import LoopSlots, Slots
from privrl_bench.envs.user_declaration import checked_users
from privrl_bench.errors import ConfigError
from privrl_bench.types import EnvSpec

TEXT = (
    "privrl_bench.models.language.task"  # of the extra `rlhf`, imported for text environments only
)


def _max_episode_steps(config: EnvConfig, env: Any) -> int:
    """Public upper bound of the steps of an episode."""
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    if env.spec is not None and env.spec.max_episode_steps:
        return int(env.spec.max_episode_steps)
    inner = getattr(env.unwrapped, "_env", None)  # dm_control's limit is in the suite's object
    steps = getattr(inner, "_step_limit", math.inf)
    if math.isfinite(steps):
        return math.ceil(steps)
    raise ConfigError(
        "env.max_episode_steps",
        f"{config.label} has no time limit; set a public one, e.g. 1000",
    )


def _one_hot(config: EnvConfig, env: Any) -> bool:
    """Whether an observation is the one-hot encoding of one of finitely many states."""
    import gymnasium as gym

    flattened = isinstance(env, gym.wrappers.FlattenObservation)
    finite = flattened and isinstance(env.env.observation_space, gym.spaces.Discrete)
    known = _own_slots(config)
    listed = hasattr(known, "tables") or hasattr(known, "process")
    return (finite or listed) and config.obs_scaling == "none"


def _unflattened(env: Any) -> Any:
    """The observation space of an environment of `make_env`, before it was flattened."""
    import gymnasium as gym

    flattened = isinstance(env, gym.wrappers.FlattenObservation)
    return env.env.observation_space if flattened else env.observation_space


def env_spec(config: EnvConfig) -> EnvSpec:
    """Return the public facts of an environment, from one instance; of a text environment, from its settings.

    Raises:
        ConfigError: See `make_env` and `checked_users`; also if public constants have the wrong length.
    """
    if config.kind == "text":
        text_spec: EnvSpec = importlib.import_module(TEXT).text_spec(config)
        return text_spec
    own = _own_slots(config)
    env = make_env(config)
    try:
        users = checked_users(env, config.label)
        if own is None and users is None:  # otherwise `checked_users` has reset it
            check_reset(config, env)
        obs_dim = int(np.prod(env.observation_space.shape))
        space = env.action_space
        discrete = hasattr(space, "n")
        if not discrete and config.action == "stretch" and not space.is_bounded():
            raise ConfigError(
                "env.action",
                f"stretch needs bounded actions, {config.label} has {space}; use env.action=clip, or "
                "gymnasium.wrappers.RescaleAction in an environment that you register",
            )
        for key in ("obs_mean", "obs_std"):
            numbers = getattr(config, key)
            used = config.obs_scaling in ("public", "private")
            if used and numbers is not None and len(numbers) != obs_dim:
                raise ConfigError(
                    f"env.{key}",
                    f"needs {obs_dim} numbers, one per observation, got {len(numbers)}",
                )
        if config.obs_scaling == "public" and (config.obs_mean is None or config.obs_std is None):
            raise ConfigError(
                "env.obs_scaling",
                f"public needs env.obs_mean and env.obs_std ({obs_dim} numbers each); "
                "or env.obs_scaling=private to learn them under privacy, or none",
            )
        return EnvSpec(
            name=config.name,
            obs_dim=obs_dim,
            discrete=discrete,
            actions=int(space.n) if discrete else int(np.prod(space.shape)),
            max_episode_steps=_max_episode_steps(config, env),
            action_low=None if discrete else np.asarray(space.low, dtype=np.float64).reshape(-1),
            action_high=None if discrete else np.asarray(space.high, dtype=np.float64).reshape(-1),
            stretch=config.action == "stretch",
            one_hot=_one_hot(config, env),
            users=users,
            observation_space=_unflattened(env),
            action_space=space,
        )
    finally:
        env.close()


# Tasks with vectorised slots, equal to stepping single environments: id -> module:class in this package.
# The class takes (config, count); its `backends` are the supported ones.
SLOTS = {
    "CartPole-v1": "classic:CartPoleSlots",
    "Acrobot-v1": "classic:AcrobotSlots",
    "Pendulum-v1": "classic:PendulumSlots",
    "MountainCar-v0": "classic:MountainCarSlots",
    "Hopper-v5": "locomotion:HopperSlots",
    "HalfCheetah-v5": "locomotion:HalfCheetahSlots",
    "dm_control/cartpole-balance-v0": "cartpole_dmc:BalanceSlots",
    "dm_control/cartpole-swingup-v0": "cartpole_dmc:SwingupSlots",
}


def _own_slots(config: EnvConfig) -> Any:
    """The vectorised slots class of a configuration; None: environments are stepped in a loop.

    Raises:
        ConfigError: The task does not support the backend.
    """
    found = None
    namespace, _, name = str(config.id).partition("/")
    if namespace == NAMESPACE and name in OWN and config.backend != "loop":
        found = slots_class(name)
    known = dmc_id(config) if config.kind == "dmc" else str(config.id)
    if known in SLOTS and not config.kwargs and config.backend != "loop":
        module, name = SLOTS[known].split(":")
        found = getattr(importlib.import_module(f"privrl_bench.envs.{module}"), name)
    if config.backend not in (found.backends if found else ("auto", "loop")):
        raise ConfigError(
            "env.backend",
            f"{config.label} does not support {config.backend!r}, or not with these env.kwargs; "
            "allowed: auto, loop",
        )
    return found


def tables_of(config: EnvConfig) -> Any:
    """Return the tables of an environment (`riverswim.Model`), or None if they are not known."""
    own = _own_slots(config)
    found = getattr(own, "tables", None)
    return None if found is None or config.max_episode_steps else found(config)


def process_of(config: EnvConfig) -> Any:
    """Return the Markov reward process of an environment with one action (`chain.Process`), or None.

    It has no time limit, unlike the problems of `tables_of`.
    """
    found = getattr(_own_slots(config), "process", None)
    return None if found is None else found(config)


def make_slots(config: EnvConfig, count: int) -> Slots:
    """Make environment slots: vectorised if supported, otherwise in a loop.

    All of these are equal bit for bit, except `backend=rollout`, and dm_control's cartpole (up to rounding).

    Args:
        config: The environment.
        count: Number of slots.
    """
    own = _own_slots(config)
    if own is not None:
        made: Slots = own(config, count)
        return made
    spec_env = make_env(config)
    obs_dim = int(np.prod(spec_env.observation_space.shape))
    spec_env.close()
    return LoopSlots(lambda: make_env(config), count, obs_dim)
