"""The samplings, one module each. The folder is the registry: a module is added and nothing else.

Plugins add modules of their own (`register`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from privrl_bench.config.schema.privacy import ADJACENCIES
from privrl_bench.config.traits import Draws
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.discovery import classes, outside_class

if TYPE_CHECKING:
    from privrl_bench.privacy.sampling.sampler import Sampler


OUTSIDE: dict[str, str] = {}  # name -> module of another package


def names() -> tuple[str, ...]:
    """Values of `privacy.sampling`."""
    return (*classes(__name__, "SAMPLER"), *OUTSIDE)


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `privacy.sampling=<name>`. Raises KeyError: there is none."""
    outside = OUTSIDE.get(name)
    found: type[Sampler] = (
        importlib.import_module(outside).SAMPLER if outside else classes(__name__, "SAMPLER")[name]
    )
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
    if OUTSIDE.get(name) == module:
        return
    if name in names():
        raise ConfigError("privacy.sampling", f"the name {name} is taken")
    from privrl_bench.privacy.sampling.sampler import Sampler

    kind = outside_class(module, "SAMPLER", name, Sampler, "privacy.sampling")
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
