"""Users who act once, in the round in which they come, and may join any later round with that trajectory.

`algo.new_users` of them come in every `algo.act_every`-th round, from round 0 on. Who comes when is public; who
joins a round is drawn. `privacy.population` bounds those who come; unset, it is their number.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError
from privrl_bench.users.declared import IN_ORDER, UNTESTED, declared_terms
from privrl_bench.users.facts import UserSize, UserTerms, UserWords
from privrl_bench.users.refusals import check_noise
from privrl_bench.users.simulated import SimulatedUsers
from privrl_bench.users.users import data_of, with_population

if TYPE_CHECKING:
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector


class ReturningUsers(SimulatedUsers):
    """Users who keep their trajectories; see `Users`. The settings `algo` have `new_users` and `act_every`."""

    name = "returning"
    gives = Data.KEPT
    draws = (Draws.SAMPLED,)
    returning = True
    used_up = True
    verb = "comes"
    wants = "rounds have {need} users come, each once"
    one_process = "the trajectories of returning users are kept in one process"

    @classmethod
    def claims(cls, run: RunConfig, spec: EnvSpec | None = None) -> bool:
        """See `Users.claims`."""
        return data_of(run) is cls.gives

    @classmethod
    def size_of(cls, run: RunConfig, spec: EnvSpec | None = None, most: int = 1) -> UserSize:
        """See `Users.size_of`: a round counts the users who come; stored steps are not new."""
        algo: Any = run.algo
        size = super().size_of(run, spec)
        return replace(size, round_steps=math.ceil(algo.new_users * size.steps / algo.act_every))

    @classmethod
    def coming(cls, run: RunConfig, rounds: int) -> int:
        """Number of users who come in so many rounds."""
        algo: Any = run.algo
        return int(algo.new_users * math.ceil(rounds / algo.act_every))

    @classmethod
    def shrink(cls, cuts: Any, rounds: int, users: int, user: int) -> None:
        """See `Users.shrink`: few users, so that the user joins soon."""
        cuts.rounds(rounds)
        cuts.cut("algo", act_every=1, new_users=user + 1)
        coming = cls.coming(cuts.config, cuts.config.rounds or rounds)
        cuts.cut("privacy", users_per_round=coming - 1, population=coming)
        cuts.user_steps(cls.spec_of(cuts.config), rounds)

    def arrivals(self, index: int) -> range:
        """Numbers of the users who come in a round. As many come in every round that has any."""
        algo: Any = self.config.algo
        turn, rest = divmod(index, algo.act_every)
        return range(0) if rest else range(turn * algo.new_users, (turn + 1) * algo.new_users)

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """The same runs with the number of users who come.

        Raises:
            ConfigError: it is no bound, every cohort would have all users, or the noise of declared users.
        """
        run = configs[0]
        if self.spec.users is not None:
            self.untested = UNTESTED
            check_noise(run, f"{run.env.label} declares {self.spec.users} users")
        round_steps = self.size_of(run, self.spec).round_steps
        rounds = run.rounds or run.total_steps // round_steps
        if rounds < 1:  # refused for its length
            return configs
        coming = self.coming(run, rounds)
        each, population = run.privacy.users_per_round, run.privacy.population or coming
        if population < coming:
            raise ConfigError(
                "privacy.population",
                f"must be at least the {coming} users who come, got {population}",
            )
        if each >= population and run.privacy.population is None:
            more = bisect_right(range(10**9), each, key=lambda r: self.coming(run, r))
            key = "rounds" if run.rounds else "total_steps"
            least = more if key == "rounds" else more * round_steps
            raise ConfigError(
                key,
                f"{rounds} rounds have {coming} users, and privacy.users_per_round={each} of "
                f"them are drawn for a round: at least {key}={least}, got "
                f"{rounds if key == 'rounds' else run.total_steps}",
            )
        if each >= population:
            raise ConfigError(
                "privacy.users_per_round",
                f"must be less than the {population} users it is drawn from (privacy.population), got "
                f"{each}",
            )
        return with_population(configs, population)

    def needed(self, rounds: int) -> int | None:
        """The users who come, each once."""
        return self.coming(self.config, rounds)

    def terms(self) -> UserTerms:
        """See `Users.terms`."""
        terms = super().terms()
        return terms if self.spec.users is None else declared_terms(terms, IN_ORDER)

    def words(self, rounds: int) -> UserWords:
        """See `Users.words`: those who join a round do not act in it."""
        words = super().words(rounds)
        steps = f"{self.size.text}: {rounds * self.size.round_steps} steps"
        return replace(words, size="", who=f"{words.who}, for {steps}")

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        from privrl_bench.users.collectors.returning_users import ReturningCollector

        live = self.live(parts, len(self.arrivals(0)))
        population = self.coming(self.config, parts.rounds)
        return ReturningCollector(live, self.spec, population, size, self.arrivals)


USERS = ReturningUsers
