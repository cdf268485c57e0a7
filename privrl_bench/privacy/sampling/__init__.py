"""The samplings, one module each. The folder is the registry: a module is added and nothing else."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from privrl_bench.privacy.discovery import classes

if TYPE_CHECKING:
    from privrl_bench.privacy.sampling.sampler import Sampler


@cache
def _registry() -> dict[str, type[Sampler]]:
    return classes(sys.modules[__name__], "SAMPLER")


def names() -> tuple[str, ...]:
    """Values of `privacy.sampling`."""
    return tuple(_registry())


def sampler_class(name: str) -> type[Sampler]:
    """The class behind `privacy.sampling=<name>`. Raises KeyError: there is none."""
    return _registry()[name]


def samplers() -> tuple[type[Sampler], ...]:
    """All classes."""
    return tuple(_registry().values())
