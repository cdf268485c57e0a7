"""Settings of the algorithms that evaluate a policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from privrl_bench.config.ranges import (
    choice,
    integer,
    nonnegative,
    positive,
    ranged,
    within,
)
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Data, Draws, Rows, Traits
from privrl_bench.errors import ConfigError, require

WEIGHTINGS = ("trajectory", "step")


@dataclass
class EvaluationConfig(AlgoConfig):
    """Settings of every algorithm that evaluates a policy."""

    traits: ClassVar[Traits] = Traits(
        units=("episode",),
        data=(Data.ACTED, Data.RECORDED),
        releases="values",
        noised_observations=False,
    )

    # the policy that is evaluated (packs/offline/fixed_policies.py); null: data.policy
    target: str | None = None
    # tabular: one-hot states
    features: str = choice("tabular", ("tabular", "linear", "fourier"))
    order: int = integer(5)  # of the Fourier basis
    # simulated trajectories from which errors are estimated where no table is known
    reference: int = integer(2000)


@dataclass
class GpopeConfig(EvaluationConfig):
    """Settings of GPOPE."""

    traits: ClassVar[Traits] = replace(EvaluationConfig.traits, draws=(Draws.ONE, Draws.NEXT))

    name: str = "gpope"
    # weight of a step: trajectory: 1 / the length of the user's trajectory | step: 1 / T
    weighting: str = choice("trajectory", WEIGHTINGS)
    lr: float = positive(1.0)  # beta of theta
    dual_lr: float | None = positive(None)  # beta of w; null: the same
    # diminishing: beta / (1 + k / halving)
    step: str = choice("constant", ("constant", "diminishing"))
    halving: float = positive(1000.0)  # rounds until a diminishing step is half


@dataclass
class OutputConfig(EvaluationConfig):
    """Settings of DP-LSW and DP-LSL."""

    traits: ClassVar[Traits] = replace(
        EvaluationConfig.traits, sends=(Rows.OUTPUT,), draws=(Draws.ALL,)
    )

    return_low: float = 0.0  # public bounds of a discounted return, which is clipped to them
    return_high: float = 100.0
    # public weight of every state; null: 1 each
    weights: list[float] | None = ranged(
        None,
        "a list of numbers >= 0, not all 0",
        lambda x: len(x) > 0 and min(x) >= 0 and max(x) > 0,
    )
    grid: int = integer(20)  # cells per coordinate that make states of real observations

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.return_low <= 0.0 <= self.return_high and self.return_low < self.return_high
        bounds = [self.return_low, self.return_high]
        require("algo.return_low", ok, "<= 0 <= algo.return_high, not both 0", bounds)
        if self.target is not None:
            raise ConfigError(
                "algo.target", f"algo={self.name} evaluates the policy that acted, and no other"
            )


@dataclass
class DpLswConfig(OutputConfig):
    """Settings of DP-LSW."""

    name: str = "dp_lsw"


@dataclass
class DpLslConfig(OutputConfig):
    """Settings of DP-LSL."""

    name: str = "dp_lsl"
    ridge: float = positive(100.0)  # lambda = |Phi|^2 max weight + ridge n^power
    power: float = within(0.4, "[0, 1]")  # exponent of the number of users n in the ridge


@dataclass
class DpLstdConfig(EvaluationConfig):
    """Settings of DP-LSTD."""

    traits: ClassVar[Traits] = replace(
        EvaluationConfig.traits,
        draws=(Draws.NEXT,),
        one_cohort=True,
        public_data="the unit of rewards",
    )

    name: str = "dp_lstd"
    # weight of a step: trajectory: 1 / the length of the user's trajectory | step: 1 / T
    weighting: str = choice("trajectory", WEIGHTINGS)
    ridge: float = nonnegative(1.0)  # k, in units of half the expected norm of the noise in A


@dataclass
class DpIsConfig(AlgoConfig):
    """Settings of DP-IS."""

    traits: ClassVar[Traits] = Traits(
        units=("episode",),
        data=(Data.ACTED, Data.RECORDED),
        releases="estimate",
        draws=(Draws.NEXT,),
        one_cohort=True,
        microbatch=4096,
        noised_observations=False,
    )

    name: str = "dp_is"
    # the policy that is evaluated: a fixed one, a run folder, or its policy.pt; null: the policy that acted
    target: str | None = None
    estimator: str = choice("per_decision", ("per_decision", "weighted"))
    # a user's weighted return is clipped to center - privacy.clip and center + privacy.clip
    center: float = 0.0
    cap: float = positive(10.0)  # of an episode's ratio, of which the mean is released
    model: str | None = None  # run folder of released values v(s) of the target: doubly robust


@dataclass
class LstdConfig(EvaluationConfig):
    """Settings of LSTD."""

    traits: ClassVar[Traits] = replace(
        EvaluationConfig.traits, sends=(Rows.POOLED,), private_version="dp_lstd", draws=(Draws.ALL,)
    )

    name: str = "lstd"
    # step: every step counts equally | trajectory: 1 / the length of the user's trajectory
    weighting: str = choice("step", WEIGHTINGS)


@dataclass
class WisLstdConfig(EvaluationConfig):
    """Settings of WIS-LSTD."""

    traits: ClassVar[Traits] = replace(
        EvaluationConfig.traits, sends=(Rows.POOLED,), private_version="gpope", draws=(Draws.ALL,)
    )

    name: str = "wis_lstd"
    trace: float = within(0.0, "[0, 1]")  # lambda
    start: float = nonnegative(1e-6)  # A begins at start * I / n
