"""Settings of the algorithms that learn a policy from recorded trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import positive, widths, within
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Data, Draws, Traits


@dataclass
class DpBcConfig(AlgoConfig):
    """Settings of behaviour cloning."""

    traits: ClassVar[Traits] = Traits(
        data=(Data.RECORDED,), draws=(Draws.SAMPLED,), noised_observations=False
    )

    name: str = "dp_bc"
    hidden: list[int] = widths([32], empty=True)  # tanh layers of the policy
    log_std_init: float = within(0.0, "[-10, 10]")  # of continuous actions
    lr: float = positive(0.03)  # of Adam, at the server
