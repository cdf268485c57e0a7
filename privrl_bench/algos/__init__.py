"""The algorithms, by the name that `algo=` takes."""

from __future__ import annotations

from typing import Any, Protocol

from privrl_bench.algos.a2c import A2c
from privrl_bench.algos.base import Algorithm, Setup, Support
from privrl_bench.algos.dppg import Dppg
from privrl_bench.algos.ppo import Ppo


class AlgorithmClass(Protocol):
    """A class that makes an `Algorithm`, and says before that what it supports."""

    @property
    def support(self) -> Support:
        """What it can be combined with."""
        ...

    def __call__(self, config: Any, setup: Setup, /) -> Algorithm:
        """Build it."""
        ...


ALGORITHMS: dict[str, AlgorithmClass] = {"dppg": Dppg, "ppo": Ppo, "a2c": A2c}
