"""Environments: construction, public facts, slots, the package's own simulators, and checks.

Importing this folder imports no simulator; `registry` does.
"""

from __future__ import annotations

from privrl_bench.errors import ConfigError

# `env.kind` without a simulator -> module of a plugin, with `env_spec`
OUTSIDE: dict[str, str] = {}


def register(kind: str, module: str) -> None:
    """Add a kind of environments without a simulator.

    Args:
        kind: a value of `env.kind`.
        module: has `env_spec`, a function of an `EnvConfig` that returns its public facts.

    Raises:
        ConfigError: the name is taken.
    """
    if OUTSIDE.get(kind, module) != module or kind in ("gym", "dmc"):
        raise ConfigError("env.kind", f"the name {kind} is taken")
    OUTSIDE[kind] = module
