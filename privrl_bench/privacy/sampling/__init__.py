"""The samplings, one module each. The folder is the registry: a module is added and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.discovery import classes

if TYPE_CHECKING:
    from privrl_bench.privacy.sampling.sampler import Sampler


def names() -> tuple[str, ...]:
    """Values of `privacy.sampling`."""
    return tuple(classes(__name__, "SAMPLER"))


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `privacy.sampling=<name>`. Raises KeyError: there is none."""
    found: type[Sampler] = classes(__name__, "SAMPLER")[name]
    return found


def ledger_sampler(name: str) -> type[Sampler]:
    """The sampler that a ledger line names. Raises PrivacyError: there is none, so epsilon is unknown."""
    if name not in names():
        raise PrivacyError(f"no sampler of ledger lines is called {name!r}: epsilon is unknown")
    return sampler_class(name)


def samplers() -> tuple[type[Sampler], ...]:
    """All classes."""
    return tuple(classes(__name__, "SAMPLER").values())
