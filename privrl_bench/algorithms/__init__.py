"""The algorithms: `algo=<name>` is the module `algos/<name>.py` and the group file `conf/algo/<name>.yaml`.

The module says `ALGORITHM`, its class, and `CONFIG`, the dataclass of its settings. An algorithm from outside
the package has its module in `schema.ALGO_MODULES` and its YAML in a folder that `--config-dir` names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from privrl_bench.config.schema import algo_module

if TYPE_CHECKING:
    from privrl_bench.algorithms.base import Algorithm


def algorithm(name: str) -> type[Algorithm]:
    """The class behind `algo=<name>`; it is called with the settings and a `base.AlgorithmContext`."""
    found: type[Algorithm] = importlib.import_module(algo_module(name)).ALGORITHM
    return found
