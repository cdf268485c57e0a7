"""Construction of environments and their public facts from an `EnvConfig`."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.construction import (
    check_reset,
    dmc_id,
    make_env,
    max_episode_steps,
    original_space,
)
from privrl_bench.envs.registration import NAMESPACE, OWN, slots_class
from privrl_bench.envs.slots import LoopSlots, Slots
from privrl_bench.envs.spaces import (
    action_box,
    action_choices,
    actions_in_words,
    image_of,
    observations_in_words,
)
from privrl_bench.envs.user_declaration import checked_users
from privrl_bench.errors import ConfigError
from privrl_bench.types import EnvSpec

OUTSIDE: dict[
    str, str
] = {}  # `env.kind` without a simulator -> module of a plugin, with `env_spec`


def _one_hot(config: EnvConfig, env: Any) -> bool:
    """Whether an observation is the one-hot encoding of one of finitely many states."""
    import gymnasium as gym

    finite = isinstance(original_space(env), gym.spaces.Discrete)
    known = _own_slots(config)
    listed = hasattr(known, "tables") or hasattr(known, "process")
    return (finite or listed) and config.obs_scaling == "none"


def env_spec(config: EnvConfig) -> EnvSpec:
    """Return the public facts of an environment, from one instance.

    Those of an environment without a simulator come from its settings.

    Raises:
        ConfigError: See `make_env` and `checked_users`; also if public constants have the wrong length.
    """
    if config.kind in OUTSIDE:
        spec: EnvSpec = importlib.import_module(OUTSIDE[config.kind]).env_spec(config)
        return spec
    own = _own_slots(config)
    env = make_env(config)
    try:
        users = checked_users(env, config.label)
        if own is None and users is None:  # otherwise `checked_users` has reset it
            check_reset(config, env)
        obs_dim = int(np.prod(env.observation_space.shape))
        space, seen = env.action_space, original_space(env)
        counts = action_choices(space)
        discrete = counts is None and hasattr(space, "n")
        low, high = (None, None) if discrete or counts is not None else action_box(space)
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
            max_episode_steps=max_episode_steps(config, env),
            action_low=low,
            action_high=high,
            stretch=config.action == "stretch",
            one_hot=_one_hot(config, env),
            users=users,
            observation_space=seen,
            action_space=space,
            choices=counts,
            image=image_of(seen, config.obs_scaling != "none"),
            observations=observations_in_words(seen, obs_dim),
            action_words=actions_in_words(space, config.action == "stretch"),
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
    "Walker2d-v5": "locomotion:Walker2dSlots",
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
    if namespace == NAMESPACE and name in OWN and not config.wrappers and config.backend != "loop":
        found = slots_class(name)
    known = dmc_id(config) if config.kind == "dmc" else str(config.id)
    plain = not config.kwargs and not config.wrappers
    if known in SLOTS and plain and config.backend != "loop":
        module, name = SLOTS[known].split(":")
        found = getattr(importlib.import_module(f"privrl_bench.envs.{module}"), name)
    if config.backend not in (found.backends if found else ("auto", "loop")):
        raise ConfigError(
            "env.backend",
            f"{config.label} does not support {config.backend!r}, or not with these env.kwargs or "
            "env.wrappers; allowed: auto, loop",
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
    return LoopSlots(lambda: make_env(config), count)


def register(kind: str, module: str) -> None:
    """Add a kind of environments without a simulator.

    Args:
        kind: a value of `env.kind`.
        module: has `env_spec`, a function of an `EnvConfig` that returns its public facts.

    Raises:
        ConfigError: the name is taken.
    """
    if OUTSIDE.get(kind, module) != module or kind in ("gym", "dmc"):
        raise ConfigError("env.kind", f"the name {kind} is taken")
    OUTSIDE[kind] = module
