"""Users whom an environment declares: real users, who are numbered (`envs/user_declaration.py`).

In cohorts of fixed size every user is used once, in the order of their numbers, so a run needs rounds * U of
them. Otherwise who takes part is drawn from `privacy.population` numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.rules import rules
from privrl_bench.users.facts import UserTerms
from privrl_bench.users.refusals import check_noise
from privrl_bench.users.simulated import SimulatedUsers
from privrl_bench.users.users import data_of, with_population

if TYPE_CHECKING:
    from privrl_bench.types import EnvSpec

UNTESTED = "what the environment does for a declared user (users are simulated here)"


class DeclaredUsers(SimulatedUsers):
    """Users whom an environment declares; see `Users`."""

    name = "declared"
    untested = UNTESTED

    @classmethod
    def claims(cls, run: RunConfig, spec: EnvSpec | None = None) -> bool:
        """See `Users.claims`."""
        return data_of(run) is Data.LIVE and spec is not None and spec.users is not None

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """`privacy.population` may be left out.

        Raises:
            ConfigError: the run cannot use declared users, or the population is too small.
        """
        run, declared = configs[0], self.spec.users or 0
        label, population = run.env.label, run.privacy.population
        if run.env.user == "segment":
            once = " or ".join(unit for unit in run.algo.traits.units if unit != "segment")
            raise ConfigError(
                "env.user",
                f"{label} declares {declared} users, and with segment a user would be in several rounds; "
                f"use {once}",
            )
        check_noise(run, f"{label} declares {declared} users")
        if rules(run.privacy).sampler.every_round:
            return with_population(configs, self._drawn_from(run, declared))
        if (population or declared) < declared:
            raise ConfigError(
                "privacy.population",
                f"must be at least the {declared} users that {label} declares, got {population}",
            )
        return with_population(configs, population or declared)

    def terms(self) -> UserTerms:
        """See `Users.terms`."""
        sampler, who = rules(self.config.privacy).sampler, IN_ORDER
        if sampler.every_round:
            who = "drawn afresh and in secret in every round"
        elif sampler.random:
            who = "in an order that the sampler draws in secret"
        return declared_terms(super().terms(), who)


IN_ORDER = "in the order of their numbers"


def declared_terms(terms: UserTerms, who: str) -> UserTerms:
    """`terms` with those of an environment that declares users; `who`: of them comes when."""
    notes = {
        "users": f"the environment plays user k when reset(options={{'user': k}}) says so: {who}; the order "
        "and what it knows of one user do not depend on another's data",
        "evaluation": "the environment must answer reset(options={'user': None, 'evaluation': True}) with a "
        "simulation; no user's data",
    }
    public = "the number of users that the environment declares"
    return replace(terms, public=(public,)).noting(notes)


USERS = DeclaredUsers
