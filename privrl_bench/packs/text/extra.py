"""Import of the optional packages of text environments (extra `rlhf`) when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from privrl_bench.errors import ConfigError


def need(module: str) -> Any:
    """Import and return an optional module.

    Raises:
        ConfigError: The extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "env",
            f"text environments need the package {module} ({error}); install it with: "
            "pip install 'privrl-bench[rlhf]'",
        ) from None


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bars of `transformers`: they last for about a second, and a run has its own."""
    bars = need("transformers").utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
