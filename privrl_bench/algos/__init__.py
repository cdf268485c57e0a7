"""The algorithms: `algo=<name>` is the module `algos/<name>.py` and the group file `conf/algo/<name>.yaml`.

The module says `ALGORITHM`, its class, and `CONFIG`, the dataclass of its settings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from privrl_bench.algos.base import Algorithm, Setup, Support


class AlgorithmClass(Protocol):
    """A class that makes an `Algorithm`, and says before that what it supports."""

    @property
    def support(self) -> Support:
        """What it can be combined with."""
        ...

    def __call__(self, config: Any, setup: Setup, /) -> Algorithm:
        """Build it."""
        ...


def algorithm(name: str) -> AlgorithmClass:
    """The class behind `algo=<name>`."""
    found: AlgorithmClass = importlib.import_module(f"privrl_bench.algos.{name}").ALGORITHM
    return found
