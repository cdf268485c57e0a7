"""The algorithms: `algo=<name>` is `<family>/<name>.py`, with its YAML file `conf/algo/<name>.yaml`.

The module has `ALGORITHM`, the class; its settings are in `<family>/<family>_settings.py`, which does not
import torch. `algorithms/registry.py` lists them, and adds algorithms of other packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from privrl_bench.algorithms.registry import ALGORITHMS, OURS
from privrl_bench.errors import ConfigError

if TYPE_CHECKING:
    from privrl_bench.algorithms.base import Algorithm


def algorithm(name: str) -> type[Algorithm]:
    """The class behind `algo=<name>`; it is called with the settings and a `base.AlgorithmContext`."""
    where, _, attribute = ALGORITHMS[name].module.partition(":")
    attribute = attribute or "ALGORITHM"
    try:
        module = importlib.import_module(where)
    except Exception as error:
        if name in OURS:
            raise
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError("algo", f"{where} cannot be imported: {why}") from error
    if not hasattr(module, attribute):
        raise ConfigError("algo", f"{where} has no {attribute}, the class of algo={name}")
    found: type[Algorithm] = getattr(module, attribute)
    return found
