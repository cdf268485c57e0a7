"""Settings of the algorithms that learn a policy from recorded trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import choice, integer, nonnegative, positive, widths, within
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Actions, Data, Draws, Traits

FEW = 20  # public users; of fewer the features and units of dp_lspi are often bad


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


@dataclass
class DpLspiConfig(AlgoConfig):
    """Settings of least-squares policy iteration."""

    traits: ClassVar[Traits] = Traits(
        data=(Data.RECORDED,),
        draws=(Draws.NEXT,),
        actions=Actions.DISCRETE,
        one_cohort=True,
        microbatch=64,
        noised_observations=False,
        public_data="features, the unit of the clip and the states of the iterations",
    )

    name: str = "dp_lspi"
    # d, at most; null: sqrt(n / 20) for n users, from 3 to 15
    features: int | None = integer(None, most=1000)
    basis: str = choice("fourier", ("fourier", "quadratic"))
    frequency: float = positive(0.33)  # of the Fourier features
    ridge: float = nonnegative(1.0)  # in units of half the expected norm of the noise in S
    pessimism: float = nonnegative(
        1.0
    )  # standard deviations of an action's value that are taken off
    iterations: int = integer(200, most=10**6)
