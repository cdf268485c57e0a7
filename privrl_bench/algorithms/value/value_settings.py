"""Settings of the algorithms that learn a value function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import (
    integer,
    nonnegative,
    positive,
    widths,
    within,
)
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Actions, Data, Draws, Rows, Traits
from privrl_bench.errors import require


@dataclass
class DqnConfig(AlgoConfig):
    """Settings of DQN with returning users."""

    traits: ClassVar[Traits] = Traits(
        draws=(Draws.SAMPLED,),
        data=(Data.KEPT,),
        actions=Actions.DISCRETE,
        noised_observations=False,
    )

    name: str = "dqn"
    hidden: list[int] = widths([128, 128], empty=True)  # ReLU layers
    lr: float = positive(1e-4)  # of AdamW, at the server
    decay: float = nonnegative(0.01)  # weight decay
    tau: float = within(0.005, "(0, 1]")  # share of the new Q in the target at every release
    batch: int | None = integer(32)  # steps of the user in one row; null: all of them
    new_users: int = integer(1)  # users that come in an acting round
    act_every: int = integer(1)  # rounds from one acting round to the next
    exploration_start: float = within(0.9, "[0, 1]")  # probability of a random action, at first
    exploration_end: float = within(0.05, "[0, 1]")  # and its limit
    # the saved policy is an average of the released ones, as of dppg; null: the last one
    averaging: float | None = nonnegative(None)
    # acting rounds in which the difference of the two decays by 1/e
    exploration_rounds: float = positive(50.0)


@dataclass
class ReplayConfig(AlgoConfig):
    """Settings of an off-policy learner with a replay memory."""

    traits: ClassVar[Traits] = Traits(
        sends=(Rows.POOLED,), units=("fresh", "segment"), actions=Actions.BOX
    )

    hidden: list[int] = widths([256, 256])  # ReLU layers of actor and critic
    lr: float = positive(3e-4)
    tau: float = within(0.005, "(0, 1]")  # share of the new critic in the target at every step
    batch: int = integer(256)  # transitions in one gradient step
    memory: int = integer(100_000, most=10**9)  # newest transitions that are stored
    updates: float = positive(1.0)  # gradient steps for one environment step

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.memory >= self.batch
        require("algo.memory", ok, f">= algo.batch={self.batch}", self.memory)


@dataclass
class DdpgConfig(ReplayConfig):
    """Settings of DDPG."""

    name: str = "ddpg"
    exploration: float = nonnegative(0.1)  # std of the noise on actions in the box [-1, 1]
    decay: float = nonnegative(1e-2)  # L2 penalty of the critic


@dataclass
class SacConfig(ReplayConfig):
    """Settings of SAC."""

    name: str = "sac"
    target_entropy: float | None = None  # nats; null: minus the number of action coordinates


@dataclass
class UcbViConfig(AlgoConfig):
    """Settings of UCB-VI."""

    traits: ClassVar[Traits] = Traits(
        sends=(Rows.INCREMENTS, Rows.POOLED),
        units=("episode",),
        actions=Actions.FINITE,
        noised_observations=False,
    )

    name: str = "ucbvi"
    log_term: float = positive(2.0 * math.log(3.0))  # of the bonuses
