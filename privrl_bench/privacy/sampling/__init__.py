"""The samplings, one module each. The folder is the registry: a module is added and nothing else.

Plugins add modules of their own (`register`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.config.schema.privacy import ADJACENCIES
from privrl_bench.config.traits import Draws
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.discovery import Registry

if TYPE_CHECKING:
    from privrl_bench.privacy.sampling.sampler import Sampler


OUTSIDE: dict[str, str] = {}  # name -> module of another package
_KNOWN = Registry(__name__, "SAMPLER", "privacy.sampling", OUTSIDE)
names = _KNOWN.names


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `privacy.sampling=<name>`. Raises KeyError: there is none."""
    found: type[Sampler] = _KNOWN.get(name)
    return found


def register(name: str, module: str) -> None:
    """Add a sampler of another package: `privacy.sampling=<name>`.

    Its runs are `unreviewed`, see `run/plugin_review.py`.

    Args:
        name: equal to the class's own `name`, which its ledger lines have.
        module: has `SAMPLER`, a subclass of `sampler.Sampler`; it should not import torch.

    Raises:
        ConfigError: the name is taken, or see `discovery.outside_class`.
    """
    from privrl_bench.privacy.sampling.sampler import Sampler

    kind = _KNOWN.new(name, module, Sampler)
    if kind is None:
        return
    for what, right in (
        ("draws", isinstance(getattr(kind, "draws", None), Draws)),
        ("adjacencies", {*getattr(kind, "adjacencies", ("",))} <= {*ADJACENCIES}),
    ):
        if not right:
            rule = f"`{what}` must be one of {', '.join(map(str, Draws if what == 'draws' else ADJACENCIES))}"
            raise ConfigError("privacy.sampling", f"{module}: {rule}")
    OUTSIDE[name] = module


def ledger_sampler(name: str) -> type[Sampler]:
    """The sampler that a ledger line names. Raises PrivacyError: there is none, so epsilon is unknown."""
    if name not in names():
        raise PrivacyError(f"no sampler of ledger lines is called {name!r}: epsilon is unknown")
    return sampler_class(name)


def samplers() -> tuple[type[Sampler], ...]:
    """All classes."""
    return tuple(map(sampler_class, names()))
