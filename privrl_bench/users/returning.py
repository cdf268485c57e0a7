"""Users who act once, in the round in which they come, and may join any later round with that trajectory.

`algo.new_users` of them come in every `algo.act_every`-th round, from round 0 on. Who comes when is public; who
joins a round is drawn. `privacy.population` bounds those who come; unset, it is their number.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError
from privrl_bench.users.declared import PUBLIC, UNTESTED, notes_of_declared
from privrl_bench.users.simulated import SimulatedUsers
from privrl_bench.users.users import check_noise, data_of, with_population

if TYPE_CHECKING:
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector


class ReturningUsers(SimulatedUsers):
    """Users who keep their trajectories; see `Users`. The settings `algo` have `new_users` and `act_every`."""

    name = "returning"
    gives = Data.KEPT
    draws = (Draws.EACH,)
    returning = True
    used_up = True
    verb = "comes"
    one_process = "the trajectories of returning users are kept in one process"

    @classmethod
    def claims(cls, run: RunConfig, spec: EnvSpec | None = None) -> bool:
        """See `Users.claims`."""
        return data_of(run) is cls.gives

    @classmethod
    def round_steps_of(cls, run: RunConfig, steps: int) -> int:
        """The steps of the users who come; stored steps are not new."""
        algo: Any = run.algo
        return math.ceil(algo.new_users * steps / algo.act_every)

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
        cls._shrink_steps(cuts, rounds)

    def arrivals(self, index: int) -> range:
        """Numbers of the users who come in a round. As many come in every round that has any."""
        algo: Any = self.config.algo
        turn, rest = divmod(index, algo.act_every)
        return range(0) if rest else range(turn * algo.new_users, (turn + 1) * algo.new_users)

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """The number of users is set by `for_rounds`. Raises ConfigError: the noise of declared users."""
        if self.spec.users is not None:
            self.untested = UNTESTED
            check_noise(configs[0], f"{configs[0].env.label} declares {self.spec.users} users")
        return configs

    def for_rounds(self, rounds: int) -> None:
        """Set the number of users.

        Raises:
            ConfigError: it is no bound, or every cohort would have all users.
        """
        run, coming = self.config, self.coming(self.config, rounds)
        each, population = run.privacy.users_per_round, run.privacy.population or coming
        if population < coming:
            raise ConfigError(
                "privacy.population",
                f"must be at least the {coming} users who come, got {population}",
            )
        if each >= population and run.privacy.population is None:
            more = bisect_right(range(10**9), each, key=lambda r: self.coming(run, r))
            key = "rounds" if run.rounds else "total_steps"
            least = more if key == "rounds" else more * self.round_steps
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
        self.configs = with_population(self.configs, population)

    def needed(self, rounds: int) -> int | None:
        """The users who come, each once."""
        return self.coming(self.config, rounds)

    def _refuse_length(self, rounds: int, need: int, there: int, who: str) -> None:
        fewer = max((r for r in range(rounds) if (self.needed(r) or 0) <= there), default=0)
        problem = f"{rounds} rounds have {need} users come, each once; {who} {there}"
        self._refuse_above(fewer, problem)

    def public(self) -> list[str]:
        """See `Users.public`."""
        return [] if self.spec.users is None else [PUBLIC]

    def notes(self) -> dict[str, str]:
        """See `Users.notes`."""
        return super().notes() | ({} if self.spec.users is None else notes_of_declared(drawn=False))

    def size_in_words(self, rounds: int) -> tuple[str, str]:
        """See `Users.size_in_words`: those who join a round do not act in it."""
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        return "", f"{self.in_words(rounds)}, for {steps}: {rounds * self.round_steps} steps"

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        from privrl_bench.users.collectors.returning_users import ReturningCollector

        live = self.live(parts, len(self.arrivals(0)))
        population = self.coming(self.config, parts.rounds)
        return ReturningCollector(live, self.spec, population, size, self.arrivals)


USERS = ReturningUsers
