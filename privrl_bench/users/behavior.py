"""Users who acted once with a known policy, `data.policy`, before the run: a simulated dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError, refuse
from privrl_bench.users.recorded import (
    check_evaluation,
    check_known_policy,
    order_note,
    shrink_list,
)
from privrl_bench.users.users import Users, with_population

if TYPE_CHECKING:
    from privrl_bench.users.collectors.collector import Collector


class BehaviorUsers(Users):
    """Users who acted with a known policy; see `Users`."""

    name = "behavior"
    gives = Data.ACTED
    draws = (Draws.NEXT, Draws.ONE, Draws.ALL)
    from_data = True
    listed = True
    one_process = "the simulated dataset is kept in one process"

    @classmethod
    def _check_policy(cls, run: RunConfig) -> None:
        """A policy that acted, and its users. Raises ConfigError."""
        check_known_policy(run)
        refuse(
            run.privacy.population is None,
            "privacy.population",
            "give the number of users that act with data.policy, e.g. privacy.population=1000",
        )
        check_evaluation(run)

    @classmethod
    def with_users(cls, run: RunConfig, users: int) -> RunConfig:
        """See `Users.with_users`."""
        if not cls.in_order(run) or run.algo.traits.one_cohort:
            return run
        return with_population([run], users)[0]

    @classmethod
    def shrink(cls, cuts: Any, rounds: int, users: int, user: int) -> None:
        """See `Users.shrink`."""
        shrink_list(cuts, rounds, cls.in_order(cuts.config))
        cuts.rounds(rounds)
        cls._shrink_steps(cuts, rounds)

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """See `Users.configured`. Raises ConfigError: the environment declares users, who would not play."""
        run = configs[0]
        if self.spec.users is not None:
            raise ConfigError(
                "algo",
                f"{run.env.label} declares {self.spec.users} users, but algo={run.algo.name} simulates who "
                "plays data.policy; use a simulator, or a dataset of them (data.id)",
            )
        return configs

    def public(self) -> list[str]:
        """See `Users.public`."""
        return [f"population={self.config.privacy.population}, exactly the users who played"]

    def notes(self) -> dict[str, str]:
        """See `Users.notes`."""
        people = {"people": "a user's randomness is their own, whoever else played"}
        return people | order_note(self.in_order(self.config))

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        from privrl_bench.users.collectors.acted import BehaviorCollector
        from privrl_bench.users.collectors.collector import BatchShape

        config = self.config
        return BehaviorCollector(
            config.env,
            self.spec,
            parts.algo.policy,
            parts.streams,
            int(config.privacy.population or 0),
            BatchShape(len(self.configs), size, self.steps),
            self.in_order(config),
        )


USERS = BehaviorUsers
