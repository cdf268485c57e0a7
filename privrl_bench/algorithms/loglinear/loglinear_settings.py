"""Settings of the algorithms with a log-linear policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import choice, integer, positive, ranged
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Actions, Traits


@dataclass
class LogLinearConfig(AlgoConfig):
    """Settings of both algorithms."""

    traits: ClassVar[Traits] = Traits(
        actions=Actions.DISCRETE, units=("episode",), noised_observations=False
    )

    lr: float = positive(2.4)  # eta of the first rounds
    lr_division: float = ranged(5.0, ">= 1", lambda x: x >= 1)  # eta is divided by this
    lr_every: int = integer(50)  # every this many rounds
    lr_floor: float = positive(0.055)  # smallest eta
    alpha: float = positive(3.5)  # radius of the trust region
    # 1 - beta, probability that a step stays in the trust region
    confidence: float = ranged(0.6, "between 0 and 1", lambda x: 0 < x < 1)
    # joined: observation and action concatenated | pairs: their products
    features: str = choice("joined", ("joined", "pairs"))
    # true: the score of the policy | false: the raw feature, as in the authors' code
    score: bool = False
    # shared: linear, learned over all episodes without noise, leaks
    baseline: str = choice("none", ("none", "shared"))
    baseline_lr: float = positive(0.001)


@dataclass
class DppgL2Config(LogLinearConfig):
    """Settings of DPPG-L2."""

    name: str = "dppg_l2"
    markov: bool = False  # true: the looser bound of proposition 4.5


@dataclass
class DppgKlConfig(LogLinearConfig):
    """Settings of DPPG-KL."""

    name: str = "dppg_kl"
    # public: from simulated episodes | private: released
    fisher: str = choice("constant", ("constant", "public", "private"))
    fisher_episodes: int = integer(25)  # public: simulated before every round
    fisher_ridge: float = positive(1e-3)  # added to the diagonal
    fisher_noise_ratio: float = positive(3.0)  # private: its noise multiplier / the gradient's
