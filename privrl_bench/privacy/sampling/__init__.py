"""The samplings, one module each. The folder is the registry: a module is added and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def samplers() -> tuple[type[Sampler], ...]:
    """All classes."""
    return tuple(classes(__name__, "SAMPLER").values())
