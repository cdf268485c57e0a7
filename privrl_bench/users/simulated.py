"""Users who are simulated: each acts with the policy of a round in an environment that declares no users."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.envs.backends import on_device
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.rules import rules
from privrl_bench.users.facts import UserTerms
from privrl_bench.users.users import Users, with_population

if TYPE_CHECKING:
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector
    from privrl_bench.users.collectors.live import SimulatedCollector

CARRIED_OVER = "carried-over environment"
SHARED_BUFFERS = "shared buffers of MuJoCo Warp"
_SHARED = (
    "the contacts of all users' worlds are in one buffer, which ends the run when it is full; that no world "
    "changes the last bits of another was tested on the CPU only"
)


class SimulatedUsers(Users):
    """Users who act in environments with the released policy; see `Users`."""

    name = "simulated"
    gives = Data.LIVE
    draws: ClassVar[tuple[Draws, ...]] = (Draws.NEXT, Draws.SAMPLED)

    @classmethod
    def claims(cls, run: RunConfig, spec: EnvSpec | None = None) -> bool:
        """See `Users.claims`."""
        return super().claims(run) and (spec is None or spec.users is None)

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """Users are drawn from a known number of them. Raises ConfigError: it is not known."""
        if rules(configs[0].privacy).sampler.draws is not Draws.SAMPLED:
            return configs
        return with_population(configs, self._drawn_from(configs[0], None))

    def _drawn_from(self, run: RunConfig, declared: int | None) -> int:
        """The number of users that cohorts are drawn from. Raises ConfigError."""
        cohort, population = run.privacy.users_per_round, run.privacy.population or declared
        if population is None:
            raise ConfigError(
                "privacy.population",
                f"privacy.sampling={run.privacy.sampling} needs the number of users, at least "
                f"privacy.users_per_round={cohort}, got null",
            )
        if population < max(declared or 0, cohort):
            least = f"the {declared} users that {run.env.label} declares"
            if population >= (declared or 0):
                least = f"privacy.users_per_round={cohort}"
            raise ConfigError("privacy.population", f"must be at least {least}, got {population}")
        return population

    def terms(self) -> UserTerms:
        """See `Users.terms`."""
        terms = super().terms()
        if self.config.env.user == "segment":
            why = (
                "an episode shares its segments with others and shapes when and where later ones "
                "run; epsilon is for nulling every segment it touches, not for the episode alone"
            )
            terms = replace(terms, caveats={CARRIED_OVER: why})
        if self.config.env.backend == "warp":
            terms = replace(terms, caveats={**terms.caveats, SHARED_BUFFERS: _SHARED})
        if rules(self.config.privacy).sampler.draws is not Draws.SAMPLED:
            return terms
        own = "a user's randomness is their own, whoever else joins the round"
        return terms.noting({"users' randomness": own})

    def one_shard(self) -> str:
        """See `Users.one_shard`."""
        if self.config.env.user == "segment":
            return "env.user=segment carries simulators from round to round"
        return super().one_shard()

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        if not on_device(self.config.env):
            return cast("Collector", self.live(parts, size))
        from privrl_bench.users.collectors.on_device import WorldsCollector

        return WorldsCollector(**self._arguments(parts, size), device=self.config.hardware.device)

    def live(self, parts: Any, users: int) -> SimulatedCollector:
        """Environments with so many slots in each replica; `parts`: see `Users.collector`."""
        from privrl_bench.users.collectors.live import SimulatedCollector

        return SimulatedCollector(**self._arguments(parts, users), device=parts.gate.devices)

    def _arguments(self, parts: Any, users: int) -> dict[str, Any]:
        """What every collector of simulated users takes."""
        return {
            "config": self.config.env,
            "spec": self.spec,
            "policy": parts.algo.policy,
            "streams": parts.streams,
            "users": users,
            "steps": self.size.steps,
            "gamma": self.config.algo.gamma,
        }


USERS = SimulatedUsers
