"""The typed configuration of a run: plain dataclasses with declared ranges.

Neither Hydra nor torch is imported here, so that `RunConfig(...)` can be built from Python, and so that a
typing error is reported before anything heavy is imported. Values live in `conf/`;
`composition/hydra_compose.py` registers these classes with Hydra. `algorithms/registry.py` says where the
settings of algorithms are.
"""

from privrl_bench.config.schema.algorithm import AlgoConfig
from privrl_bench.config.schema.env import MADE, EnvConfig, TextConfig
from privrl_bench.config.schema.privacy import PrivacyConfig
from privrl_bench.config.schema.run import (
    DataConfig,
    EvalConfig,
    HardwareConfig,
    LogConfig,
    RunConfig,
)

__all__ = [
    "MADE",
    "AlgoConfig",
    "DataConfig",
    "EnvConfig",
    "EvalConfig",
    "HardwareConfig",
    "LogConfig",
    "PrivacyConfig",
    "RunConfig",
    "TextConfig",
]
