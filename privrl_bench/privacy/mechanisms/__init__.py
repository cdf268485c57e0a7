"""The mechanisms, one module each. The folder is the registry: a module is added and nothing else.

Plugins add modules of their own (`register`).

Importing a mechanism does not import torch, so that a configuration is checked before anything heavy
is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.discovery import Registry

if TYPE_CHECKING:
    from privrl_bench.privacy.mechanisms.mechanism import Mechanism


OUTSIDE: dict[str, str] = {}  # name -> module of another package
_KNOWN = Registry(__name__, "MECHANISM", "privacy.mechanism", OUTSIDE)
names = _KNOWN.names


def mechanism_class(name: str) -> type[Mechanism]:
    """The class behind `privacy.mechanism=<name>`. Raises KeyError: there is none."""
    found: type[Mechanism] = _KNOWN.get(name)
    return found


def register(name: str, module: str) -> None:
    """Add a mechanism of another package: `privacy.mechanism=<name>`.

    Its runs are `unreviewed` until the audits have passed (`run/plugin_review.py`).

    Args:
        name: equal to the class's own `name`.
        module: has `MECHANISM`, a subclass of `mechanism.Mechanism`; it should not import torch.

    Raises:
        ConfigError: the module cannot be imported, or what it declares is refused: see `_check`.
    """
    from privrl_bench.privacy.mechanisms.mechanism import Mechanism

    kind = _KNOWN.new(name, module, Mechanism)
    if kind is not None:
        _check(module, kind)
        OUTSIDE[name] = module


def _check(module: str, kind: type[Mechanism]) -> None:
    """Refuse a class whose declarations change what other mechanisms mean. Raises ConfigError.

    Ledger lines must name the class that accounts for them, and a new key of its own would be left out of the
    identity of all other runs.
    """

    def refuse(problem: str) -> None:
        raise ConfigError("privacy.mechanism", f"{module}: {problem}")

    if not kind.records:
        refuse("`records` must name its ledger lines")
    others = [mechanism_class(other) for other in names()]
    for other in others:
        if shared := sorted(set(kind.records) & set(other.records)):
            refuse(
                f"`records` has {shared[0]!r}, the ledger lines of {other.name}; use a name of its own"
            )
    if new := sorted(set(kind.own) - {key for other in others for key in other.own}):
        refuse(f"`own` has {new[0]!r}, which is not a key of a single mechanism")


def ledger_class(record: str) -> type[Mechanism]:
    """The mechanism that defines the accounting of ledger lines with `"mechanism": record`.

    Raises:
        PrivacyError: none does, so epsilon is unknown.
    """
    for kind in map(mechanism_class, names()):
        if record in kind.records:
            return kind
    raise PrivacyError(f"no mechanism has ledger lines of {record!r}: epsilon is unknown")
