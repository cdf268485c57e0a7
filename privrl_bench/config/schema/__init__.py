"""The typed configuration of a run: plain dataclasses with range checks.

No Hydra and no torch here, so that `RunConfig(...)` can be built from Python, and so that a typing
error is reported before anything heavy is imported. Values live in `conf/`; `config/compose.py` registers
these classes with Hydra. Checks run in `__post_init__` and name the key.
"""

from privrl_bench.config.schema.algorithm import (
    ALGO_CONFIGS,
    ALGO_MODULES,
    FAMILIES,
    TEXT_VERSIONS,
    A2cConfig,
    AlgoConfig,
    DppgConfig,
    NetConfig,
    PpoConfig,
    algo_module,
)
from privrl_bench.config.schema.env import MADE, SCALINGS, USERS, EnvConfig, TextConfig
from privrl_bench.config.schema.privacy import PrivacyConfig
from privrl_bench.config.schema.run import (
    DataConfig,
    EvalConfig,
    HardwareConfig,
    LogConfig,
    RunConfig,
)

__all__ = [
    "ALGO_CONFIGS",
    "ALGO_MODULES",
    "FAMILIES",
    "MADE",
    "SCALINGS",
    "TEXT_VERSIONS",
    "USERS",
    "A2cConfig",
    "AlgoConfig",
    "DataConfig",
    "DppgConfig",
    "EnvConfig",
    "EvalConfig",
    "HardwareConfig",
    "LogConfig",
    "NetConfig",
    "PpoConfig",
    "PrivacyConfig",
    "RunConfig",
    "TextConfig",
    "algo_module",
]
