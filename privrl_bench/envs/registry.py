"""Environments by their settings: public facts, slots, and the package's own simulators.

Importing this module registers the own simulators as Gymnasium environments; for example
`gymnasium.make("privrl_bench.envs.registry:privrl_bench/Dosing0-v0")`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs import REGISTRY, simulated
from privrl_bench.envs.backends import WARP, gym_id
from privrl_bench.envs.construction import (
    check_reset,
    make_env,
    max_episode_steps,
    original_space,
)
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

NAMESPACE = "privrl_bench"
# The package's own simulators, which take `env.kwargs`: id -> module:class of their slots, time limit in steps.
OWN = {
    f"{NAMESPACE}/Dosing0-v0": ("dosing:Dosing0Slots", 143),
    f"{NAMESPACE}/Dosing1-v0": ("dosing:Dosing1Slots", 143),
    f"{NAMESPACE}/RiverSwim-v0": ("tabular:RiverSwimSlots", 20),
    f"{NAMESPACE}/Chain-v0": ("tabular:ChainSlots", 200),
    f"{NAMESPACE}/HIV-v0": ("hiv:HivSlots", 200),
}
# Tasks of others with vectorised slots, equal to stepping single environments: id -> module:class.
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


class SlotEnv(gym.Env[np.ndarray, Any]):
    """One slot of an own simulator as a Gymnasium environment, without a time limit.

    Args:
        name: key of `OWN`.
        **kwargs: the simulator's settings (`env.kwargs`).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, name: str, **kwargs: Any):
        # Gymnasium's wrapper applies the time limit.
        config = EnvConfig(name=name, id=name, kwargs=kwargs)
        kind = _imported(OWN[name][0])
        self._slots = kind(config, 1)
        self.observation_space, self.action_space = kind.spaces(config)
        self._one = np.zeros(1, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        return self._slots.reset(self._one, [seed])[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        found = self._slots.step(self._one, np.asarray([action]))
        return found.obs[0], float(found.rewards[0]), bool(found.terminated[0]), False, {}


for _name, (_, _limit) in OWN.items():
    gym.register(_name, f"{__name__}:SlotEnv", max_episode_steps=_limit, kwargs={"name": _name})


def _imported(where: str) -> Any:
    """The class `module:class` of this package."""
    module, name = where.split(":")
    return getattr(importlib.import_module(f"privrl_bench.envs.{module}"), name)


def slots_class(config: EnvConfig) -> Any:
    """The class (config, count) of the vectorised slots; None: environments are stepped in a loop."""
    if config.backend == "loop" or config.wrappers:
        return None
    name = gym_id(config)
    if name in OWN:
        return _imported(OWN[name][0])
    return _imported(SLOTS[name]) if name in SLOTS and not config.kwargs else None


def _one_hot(config: EnvConfig, env: Any) -> bool:
    """Whether an observation is the one-hot encoding of one of finitely many states."""
    finite = isinstance(original_space(env), gym.spaces.Discrete)
    known = slots_class(config)
    listed = hasattr(known, "tables") or hasattr(known, "process")
    return (finite or listed) and config.obs_scaling == "none"


def env_spec(config: EnvConfig) -> EnvSpec:
    """Return the public facts of an environment, from one instance.

    Those of an environment without a simulator come from its settings.

    Raises:
        ConfigError: See `make_env` and `checked_users`; also if public constants have the wrong length.
    """
    if not simulated(config.kind):
        spec: EnvSpec = REGISTRY.get(config.kind)(config)
        return spec
    own = slots_class(config)
    env = make_env(config)
    try:
        users = checked_users(env, config.label)
        if own is None and users is None:  # otherwise `checked_users` has reset it
            check_reset(config, env)
        made = spec_of_spaces(
            config, original_space(env), env.action_space, max_episode_steps(config, env)
        )
        return replace(made, one_hot=_one_hot(config, env), users=users)
    finally:
        env.close()


def spec_of_spaces(config: EnvConfig, seen: Any, space: Any, steps: int) -> EnvSpec:
    """Return what follows from Gymnasium spaces.

    Args:
        config: the environment's settings.
        seen: of observations, before they are flattened.
        space: of actions.
        steps: T.

    Raises:
        ConfigError: public constants have the wrong length.
    """
    obs_dim = gym.spaces.flatdim(seen)
    counts = action_choices(space)
    discrete = counts is None and hasattr(space, "n")
    low, high = (None, None) if discrete or counts is not None else action_box(space)
    for key in ("obs_mean", "obs_std"):
        numbers = getattr(config, key)
        used = config.obs_scaling in ("public", "private")
        if used and numbers is not None and len(numbers) != obs_dim:
            raise ConfigError(
                f"env.{key}", f"needs {obs_dim} numbers, one per observation, got {len(numbers)}"
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
        max_episode_steps=steps,
        action_low=low,
        action_high=high,
        stretch=config.action == "stretch",
        observation_space=seen,
        action_space=space,
        choices=counts,
        image=image_of(seen, config.obs_scaling != "none"),
        observations=observations_in_words(seen, obs_dim),
        action_words=actions_in_words(space, config.action == "stretch"),
    )


def tables_of(config: EnvConfig) -> Any:
    """Return the tables of an environment (`tabular.Model`), or None if they are not known."""
    own = slots_class(config)
    found = getattr(own, "tables", None)
    return None if found is None or config.max_episode_steps else found(config)


def process_of(config: EnvConfig) -> Any:
    """Return the Markov reward process of an environment with one action (`tabular.Process`), or None.

    It has no time limit, unlike the problems of `tables_of`.
    """
    found = getattr(slots_class(config), "process", None)
    return None if found is None else found(config)


def make_slots(config: EnvConfig, count: int) -> Slots:
    """Make environment slots: vectorised if supported, otherwise in a loop.

    Both are equal bit for bit, except for dm_control's cartpole (up to rounding).

    Args:
        config: The environment.
        count: Number of slots.
    """
    own = slots_class(config)
    if own is not None:
        made: Slots = own(config, count)
        return made
    return LoopSlots(lambda: make_env(config), count)


def make_worlds(config: EnvConfig, count: int, device: str) -> Any:
    """Make `worlds.Worlds` of an environment that `backends.check_backend` accepts.

    Args:
        config: The environment.
        count: Number of worlds, a multiple of `worlds.LANES`.
        device: torch device.
    """
    from privrl_bench.envs.worlds import TensorWorlds  # needs torch

    if config.backend == "torch":
        return TensorWorlds(slots_class(config), config, count, device)
    return _imported(f"warp_worlds:{WARP[gym_id(config)]}")(config, count, device)
