"""The mechanisms, one module each, and those of plugins.

Importing a mechanism does not import torch, so that a configuration is checked before anything heavy
is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.config.registry import Registry
from privrl_bench.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from privrl_bench.privacy.mechanisms.mechanism import Mechanism


def _check(module: str, kind: type[Mechanism]) -> None:
    """Refuse a class whose declarations change what other mechanisms mean. Raises ConfigError.

    Ledger lines must name the class that accounts for them, and a new key of its own would be left out of the
    identity of all other runs.
    """

    def refuse(problem: str) -> None:
        raise ConfigError("privacy.mechanism", f"{module}: {problem}")

    if not kind.records:
        refuse("`records` must name its ledger lines")
    others = [other for other in REGISTRY.classes() if other is not kind]
    for other in others:
        if shared := sorted(set(kind.records) & set(other.records)):
            refuse(
                f"`records` has {shared[0]!r}, the ledger lines of {other.name}; use a name of its own"
            )
    if new := sorted(set(kind.own) - {key for other in others for key in other.own}):
        refuse(f"`own` has {new[0]!r}, which is not a key of a single mechanism")


REGISTRY = Registry(
    __name__, "MECHANISM", "privacy.mechanism", f"{__name__}.mechanism:Mechanism", _check
)
names = REGISTRY.names  # values of `privacy.mechanism`


def mechanism_class(name: str) -> type[Mechanism]:
    """The class behind `privacy.mechanism=<name>`. Raises KeyError: there is none."""
    found: type[Mechanism] = REGISTRY.get(name)
    return found


def ledger_class(record: str) -> type[Mechanism]:
    """The mechanism that defines the accounting of ledger lines with `"mechanism": record`.

    Raises:
        PrivacyError: none does, so epsilon is unknown.
    """
    kind: type[Mechanism]
    for kind in REGISTRY.classes():
        if record in kind.records:
            return kind
    raise PrivacyError(f"no mechanism has ledger lines of {record!r}: epsilon is unknown")
