"""The settings that all algorithms have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import Section, within
from privrl_bench.config.traits import Traits


@dataclass
class AlgoConfig(Section):
    """Settings of an algorithm.

    Attributes:
        traits: what the algorithm declares.
    """

    prefix: ClassVar[str] = "algo."
    traits: ClassVar[Traits] = Traits()

    name: str = ""  # set by `algo=<name>`
    gamma: float = within(0.99, "(0, 1]")  # discount
