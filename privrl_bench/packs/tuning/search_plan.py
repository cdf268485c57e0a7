"""What a search will do and cost, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from privrl_bench.algorithms.evaluation.evaluation_settings import MeanReturnConfig
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import EvalConfig, PrivacyConfig, RunConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.evaluation import evaluator_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.packs.tuning.costs import (
    calibrated_search,
    first_setting,
    runs_of_costs,
    search_epsilon,
    search_guarantee,
    together,
)
from privrl_bench.packs.tuning.settings import Search, public_words
from privrl_bench.privacy.account import Account, planned_account
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import Guarantee, Unit
from privrl_bench.privacy.rules import rules
from privrl_bench.training.plan import Plan
from privrl_bench.users import kind_of

_LENGTHS = ("rounds", "total_steps", "privacy.users_per_round", "privacy.population")
_SCORE_USERS = 100  # without a population
_SCORE_SEED = 0x5C0E5C0E  # who scores a run is simulated apart from who trained it


@dataclass(frozen=True)
class SearchPlan:
    """A search with numbers.

    Attributes:
        search: what was asked for.
        words: of every run of the search, its settings apart.
        final_words: of the run that is trained with the kept settings; None: the best run itself is kept.
        runs: one run for each cost, and each set of caveats, that a run of the search can have.
        finals: the same of the run that is trained with the kept settings; empty: there is none.
        score: of one private score; None: scores cost nothing.
        guarantee: of everything that is released.
        alone: epsilon of the kept run, if nothing had been searched.
    """

    search: Search
    words: list[str]
    final_words: list[str] | None
    runs: list[Plan]
    finals: list[Plan]
    score: Account | None
    guarantee: Guarantee
    alone: float

    def lines(self) -> list[str]:
        """The plan in words, for the terminal."""
        tune, parts = self.search.tune, self.runs[0]
        where = "on private users"
        if tune.public is not None:
            where = f"on a public simulator ({tune.public}), which costs nothing"
        elif tune.users is not None:
            where = f"on {tune.users:g} of the users, who do not train the kept settings"
        score = "scored in simulated episodes of no user"
        if self.score is not None:
            privacy = self.score.config
            noise = self.score.mechanism.stds(0)["return"] / privacy.users_per_round
            score = f"scored by {privacy.users_per_round} users each, noise std {noise:.3g}"
        count, z = self.search.runs, parts.config.privacy.z
        runs = f"{count} runs"
        if not isinstance(count, int):
            runs = f"{count.mean:g} runs in the mean ({tune.runs})"
        return [
            f"search  {runs} {where}; {score}",
            f"space   {', '.join(one.text for one in self.search.space)}",
            f"runs    {parts.rounds} rounds of {parts.config.privacy.users_per_round} users each"
            + ("" if z is None or not parts.gate.mechanism.private else f", z = {z:g}"),
            f"privacy epsilon {shown_epsilon(self.guarantee.epsilon)} with tuning, "
            f"{shown_epsilon(self.alone)} without, at delta {self.guarantee.delta:g}, "
            f"status {self.guarantee.status}",
        ]


def plan_search(search: Search) -> SearchPlan:
    """Plan a search.

    Raises:
        ConfigError: a run cannot be made, or there is no analysis.
    """
    return _on_public(search) if search.tune.public is not None else _on_users(search)


def _on_users(search: Search) -> SearchPlan:
    """A search on the users whose data are protected."""
    first = compose([*search.words, *first_setting(search)])
    population, share, words = first.privacy.population, search.tune.users, list(search.words)
    if share is not None and population is None:
        raise ConfigError("tune.users", "needs the number of users, privacy.population=N")
    mine = population if share is None or population is None else math.floor(share * population)
    scorers = _scorers(search, first, mine)
    if mine is not None:
        words = later_wins(words, [f"privacy.population={mine - scorers}"])
    target, delta = first.privacy.epsilon, first.privacy.delta
    try:
        words, parts = _with_noise(search, first, words)
        if parts[0].users.numbered and (share is not None or search.tune.score == "private"):
            # The same person could be in two parts that are analysed as disjoint.
            raise ConfigError(
                "tune.score" if share is None else "tune.users",
                "the users are numbered, and nothing here keeps those of one part out of another; use "
                "tune.score=public without tune.users, or tune.public",
            )
        epsilon, score = search_epsilon([one.gate for one in parts], search.runs, delta), None
        if search.tune.score == "private":
            score = _score(search, parts[0], scorers, epsilon)
            epsilon = max(epsilon, search_epsilon([score], search.runs, delta))
    except PrivacyError as error:
        raise ConfigError("tune.runs", f"no guarantee of this search: {error}") from error
    except ConfigError as error:
        if mine is None or not scorers or error.key not in _LENGTHS:
            raise
        why = f"{error.problem} ({scorers} of the {mine} users score: tune.score_users)"
        raise ConfigError(error.key, why) from error
    if target is not None and epsilon > target * (1 + 1e-6):
        raise ConfigError(
            "privacy.epsilon",
            f"the search costs {shown_epsilon(epsilon)}, more than {shown_epsilon(target)}; leave privacy.z "
            "out to find the noise",
        )
    accounts = [one.gate for one in parts] + ([score] if score else [])
    guarantees = [one.guarantee(0) for one in accounts]
    guarantee = search_guarantee(epsilon, delta, search.runs, guarantees)
    final_words, finals = None, []
    if share is not None:
        rest = (population or 0) - (mine or 0)
        final_words = later_wins(search.words, [f"privacy.population={rest}"])
        finals = runs_of_costs(search, final_words)
        apart = "who is in the search and who in the final run depends on no data"
        own = [one.gate.guarantee(0) for one in finals]
        guarantee = together([guarantee, *own], **{"disjoint users": apart})
    alone = max(one.gate.planned_epsilon(0) for one in finals or parts)
    return SearchPlan(search, words, final_words, parts, finals, score, guarantee, alone)


def _with_noise(search: Search, first: RunConfig, words: list[str]) -> tuple[list[str], list[Plan]]:
    """The words with a z for which the search costs `privacy.epsilon`, and a run for each cost.

    Raises PrivacyError: no z does.
    """
    target = first.privacy.epsilon
    if target is None:
        return words, runs_of_costs(search, words)
    if any(one.key == "privacy.z" for one in search.space):
        raise ConfigError("privacy.epsilon", "and a distribution of privacy.z exclude each other")
    words = later_wins(words, ["privacy.epsilon=null"])
    if first.privacy.z is None:
        parts = runs_of_costs(search, later_wins(words, ["privacy.z=1"]))
        delta = first.privacy.delta
        z = calibrated_search([one.gate for one in parts], search.runs, target, delta)
        words = later_wins(words, [f"privacy.z={z:.12g}"])
    return words, runs_of_costs(search, words)


def _on_public(search: Search) -> SearchPlan:
    """A search on a public simulator: the guarantee is that of the run with the kept settings."""
    words = later_wins(search.words, public_words(search.tune))
    runs = runs_of_costs(search, words)
    for one in runs:
        if what := one.users.private_because:
            raise ConfigError(
                "tune.public",
                f"must lead to a simulator without users, but with these words {what}; "
                "leave tune.public out to count the search",
            )
    finals = runs_of_costs(search, search.words)
    why = f"chosen in {search.runs} runs on a public simulator ({search.tune.public}) without private users"
    found = together([one.gate.guarantee(0) for one in finals], search=why)
    return SearchPlan(search, words, search.words, runs, finals, None, found, found.epsilon)


def _scorers(search: Search, config: RunConfig, population: int | None) -> int:
    """Number of users who score; 0: none."""
    tune = search.tune
    if tune.score == "public":
        return 0
    if kind_of(config).gives not in MeanReturnConfig.traits.data or not evaluator_of(config).acts:
        raise ConfigError(
            "tune.score", "private needs users who play with a policy; use tune.score=public"
        )
    if rules(config.privacy).mechanism.on_devices:
        raise ConfigError("tune.score", "private is central; with noise on devices use public")
    if config.env.obs_scaling not in ("none", "public"):
        raise ConfigError("tune.score", "private needs env.obs_scaling=none or public")
    count = tune.score_users or (_SCORE_USERS if population is None else max(1, population // 10))
    if population is not None and count >= population:
        raise ConfigError(
            "tune.score_users", f"must be less than the {population} users, got {count}"
        )
    return count


def score_config(
    search: Search, run: RunConfig, users: int, z: float, policy: str | None
) -> RunConfig:
    """The run that scores a policy: one release of `algo=mean_return`."""
    assert search.tune.score_range is not None
    low, high = search.tune.score_range
    own = run.privacy
    privacy = PrivacyConfig(
        z=z,
        clip=(high - low) / 2.0,
        delta=own.delta,
        users_per_round=users,
        adjacency=own.adjacency if own.adjacency == "replace_one" else "zero_out",
        noise=own.noise,
    )
    env = replace(run.env, user="episode", user_steps=None, reward_scaling="none")
    return replace(
        run,
        seed=run.seed ^ _SCORE_SEED,
        algo=MeanReturnConfig(policy=policy, center=(low + high) / 2.0),
        env=env,
        privacy=privacy,
        hardware=replace(run.hardware, device="cpu"),
        rounds=1,
        fit_population=False,
        eval=EvalConfig(episodes=1, every=0),
        hyperparameter_source="privrl tune",
    )


def _score(search: Search, parts: Plan, users: int, epsilon: float) -> Account:
    """The account of one private score, whose noise leads to `epsilon` over the search if none was given."""
    steps = parts.spec.max_episode_steps
    unit = Unit(f"one user who scores a policy: one whole episode of at most {steps} steps", 1)

    def account(z: float) -> Account:
        privacy = score_config(search, parts.config, users, z, None).privacy
        return planned_account(privacy, Block("return", 1, privacy.clip), unit)

    z = search.tune.score_z
    if z is None:
        delta, at_one = parts.config.privacy.delta, [account(1.0)]
        bounded = epsilon < math.inf
        z = calibrated_search(at_one, search.runs, epsilon, delta) if bounded else 0.0
    return account(z)
