"""The samplings, one module each, and those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.config.registry import Registry
from privrl_bench.config.schema.privacy import ADJACENCIES
from privrl_bench.config.traits import Draws
from privrl_bench.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from privrl_bench.privacy.sampling.sampler import Sampler


def _check(module: str, kind: type[Sampler]) -> None:
    """Refuse a class without the declarations that rules read. Raises ConfigError."""
    for what, allowed, right in (
        ("draws", Draws, isinstance(getattr(kind, "draws", None), Draws)),
        ("adjacencies", ADJACENCIES, {*getattr(kind, "adjacencies", ("",))} <= {*ADJACENCIES}),
    ):
        if not right:
            rule = f"`{what}` must be one of {', '.join(map(str, allowed))}"
            raise ConfigError("privacy.sampling", f"{module}: {rule}")


REGISTRY = Registry(__name__, "SAMPLER", "privacy.sampling", f"{__name__}.sampler:Sampler", _check)
names = REGISTRY.names  # values of `privacy.sampling`


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `privacy.sampling=<name>`. Raises KeyError: there is none."""
    found: type[Sampler] = REGISTRY.get(name)
    return found


def ledger_sampler(name: str) -> type[Sampler]:
    """The sampler that a ledger line names. Raises PrivacyError: there is none, so epsilon is unknown."""
    if name not in names():
        raise PrivacyError(f"no sampler of ledger lines is called {name!r}: epsilon is unknown")
    return sampler_class(name)
