"""Environments: construction, public facts, slots, the package's own simulators, and checks.

Importing this folder imports no simulator; `registry` does.
"""

from __future__ import annotations

from privrl_bench.config.registry import Registry

# `env.kind` -> module with `env_spec`, for environments without a simulator.
_HERE = f"{__name__}.registry"
REGISTRY = Registry({"gym": _HERE, "dmc": _HERE}, "env_spec", "env.kind")


def simulated(kind: str) -> bool:
    """Whether environments of an `env.kind` have a simulator."""
    return kind not in REGISTRY.outside
