"""Which environments `env.backend` simulates on a device, without importing a simulator."""

from __future__ import annotations

import importlib.util

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError

TENSOR = (
    *("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "privrl_bench/Dosing0-v0"),
    *("privrl_bench/Dosing1-v0", "privrl_bench/RiverSwim-v0", "privrl_bench/Chain-v0"),
)
# Id -> class in `warp_worlds`.
WARP = {
    "Hopper-v5": "HopperWorlds",
    "HalfCheetah-v5": "HalfCheetahWorlds",
    "Walker2d-v5": "Walker2dWorlds",
    "Ant-v5": "AntWorlds",
    "dm_control/cartpole-balance-v0": "CartpoleWorlds",
    "dm_control/cartpole-swingup-v0": "SwingupWorlds",
    "dm_control/pendulum-swingup-v0": "PendulumWorlds",
}
ARGUMENTS = {"Ant-v5": {"include_cfrc_ext_in_observation": False}}  # that an environment needs
BACKENDS = {"torch": TENSOR, "warp": tuple(WARP)}


def dmc_id(config: EnvConfig) -> str:
    """Return the Gymnasium id of a dm_control task, as registered by shimmy."""
    return f"dm_control/{config.domain}-{config.task}-v0"


def gym_id(config: EnvConfig) -> str:
    """The Gymnasium id of an environment."""
    return dmc_id(config) if config.kind == "dmc" else str(config.id)


def on_device(config: EnvConfig) -> bool:
    """Whether users are simulated in `worlds`."""
    return config.backend in BACKENDS


def check_backend(config: EnvConfig) -> None:
    """Raise ConfigError: `env.backend` has no such environment, or MuJoCo Warp is not installed."""
    if not on_device(config):
        return
    known, name = BACKENDS[config.backend], gym_id(config)
    # Other arguments change what was written again here.
    own = name.startswith("privrl_bench/")
    taken = own or dict(config.kwargs) == ARGUMENTS.get(name, {})
    odd = config.wrappers or config.obs_parts or config.kind not in ("gym", "dmc")
    if name not in known or odd or not taken:
        which = f"{', '.join(known)}, without wrappers, env.obs_parts, or other env.kwargs"
        raise ConfigError(
            "env.backend", f"{config.backend} simulates {which}; for {config.label} use auto"
        )
    if config.backend == "warp" and importlib.util.find_spec("mujoco_warp") is None:
        what = "MuJoCo Warp is not installed: pip install 'privrl-bench[gpu]'"
        raise ConfigError("env.backend", what)
