"""Settings of the evaluation of a policy on private users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import text
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Traits


@dataclass
class MeanReturnConfig(AlgoConfig):
    """Settings of `mean_return.py`."""

    traits: ClassVar[Traits] = Traits(units=("episode",), noised_observations=False)

    name: str = "mean_return"
    policy: str | None = text(None, 4096)  # folder of a finished run, or its policy.pt
    # returns are clipped to center - privacy.clip and center + privacy.clip; a user without data counts as it
    center: float = 0.0
