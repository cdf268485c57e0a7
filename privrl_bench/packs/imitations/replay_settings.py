"""Settings of `dqn_replay`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from privrl_bench.algorithms.value.value_settings import ReplayConfig
from privrl_bench.config.ranges import integer, nonnegative, positive, widths, within
from privrl_bench.config.traits import USERS, Actions, Rows, Traits


@dataclass
class DqnReplayConfig(ReplayConfig):
    """Settings of DQN with a replay memory."""

    traits: ClassVar[Traits] = replace(
        ReplayConfig.traits,
        sends=(Rows.POOLED, Rows.TRANSITIONS),
        private_version="dqn",
        units=USERS,
        actions=Actions.DISCRETE,
    )

    name: str = "dqn_replay"
    hidden: list[int] = widths([128, 128])  # ReLU layers
    lr: float = positive(1e-4)  # of AdamW
    decay: float = nonnegative(0.01)  # weight decay
    batch: int = integer(128)
    memory: int = integer(10_000, most=10**9)
    exploration_start: float = within(0.9, "[0, 1]")  # probability of a random action, at first
    exploration_end: float = within(0.05, "[0, 1]")  # and its limit
    # environment steps in which the difference of the two decays by 1/e
    exploration_steps: float = positive(1000.0)


CONFIG = DqnReplayConfig
