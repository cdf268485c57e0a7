"""privrl_bench: reinforcement learning under differential privacy, one config-driven runner.

Everything here is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privrl_bench.config.plugins import Plugin, register

_WHERE = {
    "Plugin": "config.plugins",
    "register": "config.plugins",
}
__all__ = [
    "Plugin",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
