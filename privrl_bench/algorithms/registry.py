"""Where each algorithm and its settings are. Imports neither torch nor an algorithm."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, first_line

if TYPE_CHECKING:
    from privrl_bench.algorithms.base import Algorithm

# Family (a folder of privrl_bench/algorithms) -> algorithms, each with the class of its settings. The module is
# <family>/<name>.py, which has ALGORITHM; the settings are in <family>/<family>_settings.py.
FAMILIES = {
    "policy_gradient": {
        "dppg": "DppgConfig",
        "ppo": "PpoConfig",
        "a2c": "A2cConfig",
        "reinforce": "ReinforceConfig",
    },
    "value": {
        "dqn": "DqnConfig",
        "ddpg": "DdpgConfig",
        "sac": "SacConfig",
        "ucbvi": "UcbViConfig",
    },
    "loglinear": {"dppg_l2": "DppgL2Config", "dppg_kl": "DppgKlConfig"},
    "evaluation": {"mean_return": "MeanReturnConfig"},
}


class Location(NamedTuple):
    """Where an algorithm is."""

    module: str  # has ALGORITHM; or "module:Class"
    settings: str  # a module
    config: str = "CONFIG"  # the class in it


ALGORITHMS: dict[str, Location] = {
    name: Location(f"{package}.{name}", f"{package}.{family}_settings", config)
    for family, algorithms in FAMILIES.items()
    for package in (f"privrl_bench.algorithms.{family}",)
    for name, config in algorithms.items()
}
OURS = frozenset(ALGORITHMS)


def location(module: str, settings: str | None = None) -> Location:
    """The location of `register_algorithm`'s arguments."""
    where, _, config = (settings or module).partition(":")
    return Location(module, where, config or "CONFIG")


def register_algorithm(name: str, module: str, settings: str | None = None) -> None:
    """Add an algorithm of another package: `algo=<name>`.

    `composition/plugins.py` calls it for plugins, whose YAML files are in their own folder. Another program
    that calls it has `algo/<name>.yaml` in a folder on Hydra's search path (`--config-dir`).

    Args:
        name: equal to the default of its settings' field `name`.
        module: has `ALGORITHM`, a subclass of `algorithms.base.Algorithm`; or, with `settings`, `module:Class`.
        settings: the module that has `CONFIG`, a subclass of `AlgoConfig`, or `module:Class`; None: `module`.
            If it does not import torch, a typing error is reported without importing torch.

    Raises:
        ValueError: the package itself has an algorithm of this name.
    """
    if name in OURS:
        raise ValueError(f"algo={name} is an algorithm of privrl_bench")
    ALGORITHMS[name] = location(module, settings)


def registered() -> dict[str, Location]:
    """The algorithms of other packages. A new process has to register them again."""
    return {name: where for name, where in ALGORITHMS.items() if name not in OURS}


def algo_schema(name: str) -> type[AlgoConfig]:
    """The class of an algorithm's settings.

    Args:
        name: of a registered algorithm.

    Raises:
        ConfigError: its module cannot be imported, or does not have the class.
    """
    where = ALGORITHMS[name]
    module = _imported(name, where.settings)
    try:
        found: type[AlgoConfig] = getattr(module, where.config)
        if not issubclass(found, AlgoConfig):
            raise TypeError("it must be a subclass of AlgoConfig")
        default = found().name
    except Exception as error:
        what = f"{where.settings} has no {where.config}: {first_line(error)}"
        raise ConfigError("algo", what) from error
    if default != name:
        what = f"{where.settings}: the default of `name` must be {name!r}, got {default!r}"
        raise ConfigError("algo", what)
    return found


def algorithm(name: str) -> type[Algorithm]:
    """The class behind `algo=<name>`; it is called with the settings and a `base.AlgorithmContext`.

    Raises:
        ConfigError: as `algo_schema`.
    """
    where, _, attribute = ALGORITHMS[name].module.partition(":")
    attribute = attribute or "ALGORITHM"
    module = _imported(name, where)
    if not hasattr(module, attribute):
        raise ConfigError("algo", f"{where} has no {attribute}, the class of algo={name}")
    found: type[Algorithm] = getattr(module, attribute)
    return found


def _imported(name: str, where: str) -> ModuleType:
    """A module of an algorithm. Raises ConfigError for one of another package; our own fail as they are."""
    try:
        return importlib.import_module(where)
    except Exception as error:
        if name in OURS:
            raise
        raise ConfigError("algo", f"{where} cannot be imported: {first_line(error)}") from error
