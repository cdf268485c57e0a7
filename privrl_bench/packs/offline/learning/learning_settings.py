"""Settings of the algorithms that learn a policy from recorded trajectories."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
class DpCqlConfig(AlgoConfig):
    """Settings of conservative Q-learning."""

    traits: ClassVar[Traits] = Traits(
        data=(Data.RECORDED,),
        draws=(Draws.SAMPLED, Draws.NEXT),
        actions=Actions.DISCRETE,
        noised_observations=False,
        public_data="the unit of returns",
    )

    name: str = "dp_cql"
    hidden: list[int] = widths([16], empty=True)  # ReLU layers of Q
    conservative: float = nonnegative(0.01)  # weight of the conservative term
    lr: float = positive(1e-2)  # of AdamW, at the server
    decay: float = nonnegative(0.0)  # weight decay
    tau: float = within(0.3, "(0, 1]")  # share of the new Q in the target at every release
    n_steps: int = integer(50, most=10**6)  # whose rewards are summed before Q' is asked
    batch: int | None = integer(None)  # steps of the user in one row; null: all of them
    averaging: float | None = nonnegative(4.0)  # as of dppg; null: the last Q


@dataclass
class LinearModelConfig(AlgoConfig):
    """Settings of algorithms that release the sums of a linear model."""

    traits: ClassVar[Traits] = Traits(
        data=(Data.RECORDED,),
        draws=(Draws.NEXT,),
        actions=Actions.DISCRETE,
        one_cohort=True,
        microbatch=64,
        noised_observations=False,
        public_data="features, the unit of the clip and the states of the iterations",
    )

    # d, at most; null: sqrt(n / 20) for n users, from 3 to 15
    features: int | None = integer(None, most=1000)
    basis: str = choice("fourier", ("fourier", "quadratic"))
    frequency: float = positive(0.33)  # of the Fourier features
    ridge: float = nonnegative(1.0)  # in units of half the expected norm of the noise in S


@dataclass
class DpLspiConfig(LinearModelConfig):
    """Settings of least-squares policy iteration."""

    name: str = "dp_lspi"
    # Standard deviations of an action's value that are taken off.
    pessimism: float = nonnegative(1.0)
    iterations: int = integer(200, most=10**6)


@dataclass
class DpFqeConfig(LinearModelConfig):
    """Settings of fitted Q evaluation."""

    traits: ClassVar[Traits] = replace(LinearModelConfig.traits, releases="estimate")

    name: str = "dp_fqe"
    target: str | None = (
        None  # the policy that is evaluated: a fixed one, a run folder, or its policy.pt
    )
