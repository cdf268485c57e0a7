"""Users who acted once with a known policy, `data.policy`, before the run: a simulated dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError, refuse
from privrl_bench.packs.offline.recorded import order_note
from privrl_bench.users.facts import UserTerms
from privrl_bench.users.refusals import evaluation, known_policy, no_split, segments_unbounded
from privrl_bench.users.users import Users

if TYPE_CHECKING:
    from privrl_bench.users.collectors.collector import Collector


def _counted(run: RunConfig) -> None:
    """How many act is known."""
    refuse(
        run.privacy.population is None,
        "privacy.population",
        "give the number of users that act with data.policy, e.g. privacy.population=1000",
    )


class BehaviorUsers(Users):
    """Users who acted with a known policy; see `Users`."""

    name = "behavior"
    gives = Data.ACTED
    draws = (Draws.NEXT, Draws.ONE, Draws.ALL)
    from_data = True
    listed = True
    refusals = (known_policy, _counted, evaluation, no_split, segments_unbounded)
    one_process = "the simulated dataset is kept in one process"

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

    def terms(self) -> UserTerms:
        """See `Users.terms`."""
        own = {"users' randomness": "a user's randomness is their own, whoever else played"}
        who = f"population={self.config.privacy.population}, exactly the users who played"
        terms = replace(super().terms(), public=(who,))
        return terms.noting(own | order_note(self.in_order(self.config)))

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        from privrl_bench.packs.offline.stored_users import BehaviorCollector
        from privrl_bench.users.collectors.collector import BatchShape

        config = self.config
        return BehaviorCollector(
            config.env,
            self.spec,
            parts.algo.policy,
            parts.streams,
            int(config.privacy.population or 0),
            BatchShape(len(self.configs), size, self.size.steps),
            self.in_order(config),
        )


USERS = BehaviorUsers
