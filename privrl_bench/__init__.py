"""privrl_bench: reinforcement learning under differential privacy, one config-driven runner.

From Python:

    import privrl_bench as pb

    result = pb.run("algo=dppg env=cartpole privacy.z=1 total_steps=100_000")
    policy = pb.load_policy(result.folder)
    action = policy.act(observation)

Everything here is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privrl_bench.api.auditing import audit_epsilon, audit_leaks
    from privrl_bench.api.explaining import explain
    from privrl_bench.api.policies import evaluate, export, load_policy
    from privrl_bench.api.training import (
        RunFailed,
        RunInterrupted,
        compare,
        load_run,
        multirun,
        plan,
        run,
        runs,
    )
    from privrl_bench.audit.options import Options as AuditOptions
    from privrl_bench.composition.plugins import Plugin, register
    from privrl_bench.errors import ConfigError

_WHERE = {
    "AuditOptions": "api.auditing",
    "ConfigError": "errors",
    "Plugin": "composition.plugins",
    "RunFailed": "api.training",
    "RunInterrupted": "api.training",
    "audit_epsilon": "api.auditing",
    "audit_leaks": "api.auditing",
    "compare": "api.training",
    "evaluate": "api.policies",
    "explain": "api.explaining",
    "export": "api.policies",
    "load_policy": "api.policies",
    "load_run": "api.training",
    "multirun": "api.training",
    "plan": "api.training",
    "register": "composition.plugins",
    "run": "api.training",
    "runs": "api.training",
}
__all__ = [
    "AuditOptions",
    "ConfigError",
    "Plugin",
    "RunFailed",
    "RunInterrupted",
    "audit_epsilon",
    "audit_leaks",
    "compare",
    "evaluate",
    "explain",
    "export",
    "load_policy",
    "load_run",
    "multirun",
    "plan",
    "register",
    "run",
    "runs",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        module, _, function = _added().get(name, "").partition(":")
        if not module:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), function)
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def _added() -> dict[str, str]:
    """The functions that packs and plugins add, for example `tune`."""
    from privrl_bench.composition import plugins

    plugins.load_installed()
    return plugins.functions()


def __dir__() -> list[str]:
    return sorted({*_WHERE, *_added()})
