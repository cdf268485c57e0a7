"""The optional packages of text environments, imported when one is used and not before."""

from __future__ import annotations

import importlib
from typing import Any

from privrl_bench.errors import ConfigError


def need(module: str) -> Any:
    """The module `transformers` or `tokenizers`. Raises ConfigError: the extra is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "env",
            f"texts need the package {module} ({error}); get it with: "
            "pip install 'privrl-bench[rlhf]'",
        ) from None
