"""What algorithms, mechanisms, samplers and kinds of users declare, so that each can be combined with new ones.

An algorithm names no mechanism, no sampler and no kind of users: it says in `Traits` what it sends, takes and
releases. A mechanism says what it takes, a sampler how it draws, a kind of users what they give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

USERS = ("fresh", "episode", "segment")


class Rows(Enum):
    """What an algorithm sends to the gate in a round, and a mechanism takes."""

    CLIPPED = "one row for each user, which the gate clips"
    INCREMENTS = "one row for each user, whose sums over all rounds are used"
    TRANSITIONS = "one row, with noise that the algorithm adds to gradients of single transitions"
    OUTPUT = "one output about all users, with a smooth bound on its sensitivity"
    POOLED = "one row with all users' data"


class Draws(Enum):
    """How a sampler finds the users of a round."""

    NEXT = "the next U users, each used once"
    SAMPLED = "users drawn at random from the population, in any of the rounds"
    ONE = "one user of exactly n"
    ALL = "all users"


class Data(Enum):
    """What users give, and an algorithm learns from."""

    LIVE = "episodes with the policy of the round, by users who act once"
    KEPT = "episodes with the policy of the round in which a user came, for any later round"
    RECORDED = "trajectories of a dataset"
    ACTED = "trajectories with a known, fixed policy"
    TEXTS = "answers to prompts"


class Actions(Enum):
    """What an algorithm can act with, in the words of the error where it cannot."""

    ANY = "actions"
    DISCRETE = "discrete actions"
    FINITE = "discrete actions and finitely many states"
    BOX = "actions in a bounded box"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an algorithm declares.

    Attributes:
        sends: what it can send.
        draws: how the users of its rounds can be found.
        units: values of `env.user` that it accepts.
        data: what it can learn from, the default first.
        releases: what its releases are: `policy`, or what the evaluator of a pack or plugin judges.
        actions: what it can act with.
        devices: values of `hardware.device` that it accepts; `cuda` if it computes anything there.
        device_rounds: it trains users who are simulated on the device (`env.backend=torch`, `warp`), there.
        private_version: the algorithm that is named where this one is asked for privacy and has none.
        public_data: what it takes from the public part of a dataset, in words, the scaling apart; empty:
            nothing.
        one_cohort: all users are the cohort of its one round, each with a row.
        learns_scaling: it supports env.obs_scaling=private and env.reward_scaling=private.
        replicas: it trains several seeds and z in one program.
        microbatch: most users whose rows are computed by the same operations.
        noised_observations: it can learn from users whose devices add the noise, where the gate neither
            clips nor noises.
        only_with: setting -> another one and the value without which it has no effect, both of `algo`.
    """

    sends: tuple[Rows, ...] = (Rows.CLIPPED,)
    draws: tuple[Draws, ...] = (Draws.NEXT, Draws.SAMPLED)
    units: tuple[str, ...] = USERS
    data: tuple[Data, ...] = (Data.LIVE,)
    releases: str = "policy"
    actions: Actions = Actions.ANY
    devices: tuple[str, ...] = ("cpu",)
    device_rounds: bool = False
    private_version: str = "dppg"
    public_data: str = ""
    one_cohort: bool = False
    learns_scaling: bool = False
    replicas: bool = True
    microbatch: int = 16
    noised_observations: bool = True
    only_with: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    @property
    def pools_users(self) -> bool:
        """Whether the data of a round's users make one row, so that nothing bounds a single user."""
        return set(self.sends) <= {Rows.POOLED, Rows.TRANSITIONS}

    @property
    def full_batch(self) -> bool:
        """Whether it takes all users at once, in one round and as one row."""
        return self.draws == (Draws.ALL,)

    @property
    def one_round(self) -> bool:
        """Whether its only round has all users."""
        return self.full_batch or self.one_cohort
