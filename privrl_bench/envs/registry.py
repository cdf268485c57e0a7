"""From an `EnvConfig` to environments and their public facts."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.construction import check_reset, dmc_id, make_env
from privrl_bench.envs.declared import checked_users
from privrl_bench.envs.registration import NAMESPACE, OWN, slots_class
from privrl_bench.envs.slots import LoopSlots, Slots
from privrl_bench.errors import ConfigError
from privrl_bench.types import EnvSpec


def _max_episode_steps(config: EnvConfig, env: Any) -> int:
    """Public upper bound on the steps of an episode."""
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    if env.spec is not None and env.spec.max_episode_steps:
        return int(env.spec.max_episode_steps)
    inner = getattr(env.unwrapped, "_env", None)  # dm_control keeps its limit in the suite's object
    steps = getattr(inner, "_step_limit", math.inf)
    if math.isfinite(steps):
        return math.ceil(steps)
    raise ConfigError(
        "env.max_episode_steps",
        f"{config.label} has no time limit of its own; set a public one, e.g. 1000",
    )


def _one_hot(config: EnvConfig, env: Any) -> bool:
    """Whether an observation says which of finitely many states it is, and nothing else."""
    import gymnasium as gym

    flattened = isinstance(env, gym.wrappers.FlattenObservation)
    finite = flattened and isinstance(env.env.observation_space, gym.spaces.Discrete)
    known = _own_slots(config)
    listed = hasattr(known, "tables") or hasattr(known, "process")
    return (finite or listed) and config.obs_scaling == "none"


def env_spec(config: EnvConfig) -> EnvSpec:
    """Public facts of an environment, read from one instance; of a text, from its settings.

    Raises:
        ConfigError: see `make_env`, `checked_users`; also when public constants have the wrong length.
    """
    if config.kind == "text":
        from privrl_bench.models.language.task import text_spec

        return text_spec(config)
    own = _own_slots(config)
    env = make_env(config)
    try:
        users = checked_users(env, config.label)
        if own is None and users is None:  # else `checked_users` has reset it
            check_reset(config, env)
        obs_dim = int(np.prod(env.observation_space.shape))
        space = env.action_space
        discrete = hasattr(space, "n")
        if not discrete and config.action == "stretch" and not space.is_bounded():
            raise ConfigError(
                "env.action",
                f"stretch needs bounded actions, {config.label} has {space}; use env.action=clip, or "
                "gymnasium.wrappers.RescaleAction in a registered environment of your own",
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
        )
    finally:
        env.close()


# Tasks with slots of our own, equal to stepping single environments: id -> module:class here.
# The class takes (config, count); `backends` are those that it knows.
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
    """The class of `SLOTS` for this configuration, or None where environments are stepped in a loop.

    Raises:
        ConfigError: the task does not have the backend.
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
            f"{config.label} has no {config.backend!r}, or not with these env.kwargs; "
            "allowed: auto, loop",
        )
    return found


def tables_of(config: EnvConfig) -> Any:
    """The finite problem behind an environment (`riverswim.Model`), or None where it is not known."""
    own = _own_slots(config)
    found = getattr(own, "tables", None)
    return None if found is None or config.max_episode_steps else found(config)


def process_of(config: EnvConfig) -> Any:
    """The Markov reward process behind an environment with one action (`chain.Process`), or None.

    It has no time limit. (`tables_of` is for problems with a horizon, whose end is a state among the observed.)
    """
    found = getattr(_own_slots(config), "process", None)
    return None if found is None else found(config)


def make_slots(config: EnvConfig, count: int, workers: int = 0) -> Slots:
    """`count` environments: in processes if asked, over arrays where there is such a way, else in a loop.

    Every way but `backend=rollout` gives the same numbers, bit for bit; dm_control's cartpole to rounding.
    """
    if workers > 0 and count > 1:
        from privrl_bench.envs.slot_workers import WorkerSlots

        return WorkerSlots(config, count, workers)
    own = _own_slots(config)
    if own is not None:
        made: Slots = own(config, count)
        return made
    spec_env = make_env(config)
    obs_dim = int(np.prod(spec_env.observation_space.shape))
    spec_env.close()
    return LoopSlots(lambda: make_env(config), count, obs_dim)
