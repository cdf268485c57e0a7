"""Registers the package's own simulators as Gymnasium environments.

Importing this module registers them; for example
`gymnasium.make("privrl_bench.envs.registration:privrl_bench/Dosing0-v0")`.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig

NAMESPACE = "privrl_bench"
# id without the namespace -> module:class of its slots in this package, time limit in steps
OWN = {
    "Dosing0-v0": ("dosing:Dosing0Slots", 143),
    "Dosing1-v0": ("dosing:Dosing1Slots", 143),
    "RiverSwim-v0": ("riverswim:RiverSwimSlots", 20),
    "Chain-v0": ("chain:ChainSlots", 200),
    "HIV-v0": ("hiv:HivSlots", 200),
}


def slots_class(name: str) -> Any:
    """Return the slots class of an id without its namespace."""
    module, kind = OWN[name][0].split(":")
    return getattr(importlib.import_module(f"privrl_bench.envs.{module}"), kind)


class SlotEnv(gym.Env[np.ndarray, Any]):
    """One slot as a Gymnasium environment, without a time limit.

    Args:
        name: Key of `OWN`.
        **kwargs: The simulator's settings (`env.kwargs`).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, name: str, **kwargs: Any):
        kind = slots_class(name)
        # Gymnasium's wrapper applies the time limit.
        config = EnvConfig(name=name, id=f"{NAMESPACE}/{name}", kwargs=kwargs)
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


for _name, (_, _max_episode_steps) in OWN.items():
    gym.register(
        f"{NAMESPACE}/{_name}",
        f"{__name__}:SlotEnv",
        max_episode_steps=_max_episode_steps,
        kwargs={"name": _name},
    )
