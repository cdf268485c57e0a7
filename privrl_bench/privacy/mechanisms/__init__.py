"""The mechanisms, one module each. The folder is the registry: a module is added and nothing else.

Importing a mechanism does not import torch, so that a configuration is checked before anything heavy
is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.discovery import classes

if TYPE_CHECKING:
    from privrl_bench.privacy.mechanisms.mechanism import Mechanism


def names() -> tuple[str, ...]:
    """Values of `privacy.mechanism`."""
    return tuple(classes(__name__, "MECHANISM"))


def mechanism_class(name: str) -> type[Mechanism]:
    """The class behind `privacy.mechanism=<name>`. Raises KeyError: there is none."""
    found: type[Mechanism] = classes(__name__, "MECHANISM")[name]
    return found


def ledger_class(record: str) -> type[Mechanism]:
    """The mechanism that defines the accounting of ledger lines with `"mechanism": record`.

    Raises:
        PrivacyError: none does, so epsilon is unknown.
    """
    for kind in map(mechanism_class, names()):
        if record in kind.records:
            return kind
    raise PrivacyError(f"no mechanism has ledger lines of {record!r}: epsilon is unknown")
