"""What every algorithm declares, and the settings that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import Section, within
from privrl_bench.config.schema.env import USERS


@dataclass
class AlgoConfig(Section):
    """Settings of an algorithm, and declarations that `config/checks.py` and the builder read.

    Attributes:
        mechanisms: values of `privacy.mechanism` that it accepts. `("none",)`: it is not private.
        private_version: the algorithm that is named where this one is asked for privacy and has none.
        samplings: values of `privacy.sampling` that it accepts.
        units: values of `env.user` that it accepts.
        collectors: how it obtains users, the default first: `simulated` (live users, each used once),
            `returning_users` (live users that keep their trajectory and may join any later round; `people` and
            `arrivals` say who comes), `dataset` (data.id), `behavior` (users that act with data.policy) or
            `prompts` (env.kind=text).
        evaluator: what is measured of its releases: `returns`, `mspbe` (its releases are the weights of a
            value function) or `generations` (answers to prompts).
        torch_devices: values of `hardware.device` that it accepts; `cuda` if it computes anything there.
        public_data: what it takes from the public part of a dataset, in words, the scaling apart; empty:
            nothing.
        pools_users: the data of a round's users make one row, so that nothing bounds a single user.
        one_cohort: all users are the cohort of its one round, each with a row.
        learns_scaling: it supports env.obs_scaling=private and env.reward_scaling=private.
        takes_noised_observations: it can learn under privacy=local, where the gate neither clips nor noises.
        dppg_formula: the plan shows the epsilon of the DPPG paper's formula beside the exact one.
        only_with: setting -> the switch without which it has no effect, both of `algo`.
    """

    prefix: ClassVar[str] = "algo."
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    private_version: ClassVar[str] = "dppg"
    samplings: ClassVar[tuple[str, ...]] = ("fixed", "poisson")
    units: ClassVar[tuple[str, ...]] = USERS
    collectors: ClassVar[tuple[str, ...]] = ("simulated",)
    evaluator: ClassVar[str] = "returns"
    torch_devices: ClassVar[tuple[str, ...]] = ("cpu",)
    public_data: ClassVar[str] = ""
    pools_users: ClassVar[bool] = False
    one_cohort: ClassVar[bool] = False
    learns_scaling: ClassVar[bool] = False
    takes_noised_observations: ClassVar[bool] = True
    dppg_formula: ClassVar[bool] = False
    only_with: ClassVar[Mapping[str, str]] = {}

    name: str = ""  # set by `algo=<name>`
    gamma: float = within(0.99, "(0, 1]")  # discount

    @property
    def full_batch(self) -> bool:
        """Whether it takes all users at once, in one round and as one row."""
        return self.samplings == ("full_batch",)

    @property
    def one_round(self) -> bool:
        """Whether its only round has all users."""
        return self.full_batch or self.one_cohort

    def round_steps(self, users: int, steps: int) -> int:
        """Environment steps that one round counts, a public number.

        Args:
            users: U, the users of a round.
            steps: T, the steps of one user.
        """
        return users * steps

    def people(self, rounds: int) -> int:
        """Number of users that come in `rounds` rounds, with `returning_users`."""
        return 0

    def arrivals(self, round_index: int) -> range:
        """Indices of the users that come in a round, with `returning_users`.

        As many come in every round that has any; round 0 has.
        """
        return range(0)
