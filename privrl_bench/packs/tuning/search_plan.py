"""What a search will do and cost, before anything is trained: epsilon of several private runs.

`best_of_runs.py` has the theorems for the best run. A fixed number of runs is composed: its epsilon
covers the release of every run, so that later settings may depend on earlier results.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from privrl_bench.algorithms.evaluation.evaluation_settings import MeanReturnConfig
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import EvalConfig, PrivacyConfig, RunConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.evaluation import evaluator_of
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.metrics import shown_epsilon
from privrl_bench.models.policy import is_greedy
from privrl_bench.packs.tuning.best_of_runs import RunCount, profile_epsilon
from privrl_bench.packs.tuning.settings import Search, split
from privrl_bench.privacy.account import Account, planned_account
from privrl_bench.privacy.accounting.calibrate import least_noise
from privrl_bench.privacy.accounting.releases import joint_z
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Guarantee, Unit
from privrl_bench.privacy.mechanisms import ledger_class
from privrl_bench.privacy.rules import rules
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.users import kind_of

_LENGTHS = ("rounds", "total_steps", "privacy.users_per_round", "privacy.population")
_SCORE_USERS = 100  # without a population
# Words of a search that hold for the run of `tune.score`, too.
_SHARED = re.compile(
    r"\+{0,2}((env|data|budget|hardware|log|plugins)\b|privacy\.(noise|delta|adjacency)=)"
)
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
        if tune.scoring:
            score = f"scored by {tune.score}, on users who do not train"
        elif self.score is not None:
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
        if search.tune.score != "public":
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
    words = later_wins(search.words, split("tune.public", search.tune.public or ""))
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
    if tune.score != "private":
        return 0
    if kind_of(config).gives not in MeanReturnConfig.traits.data or not evaluator_of(config).acts:
        needs = "private needs users who play with a policy; use tune.score=public"
        raise ConfigError("tune.score", needs)
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
    """The run that scores a policy: of the words of `tune.score`, or one release of `algo=mean_return`."""
    if search.tune.scoring:
        policy = (policy or "uniform").replace("'", r"\'")
        more = [f"algo.target='{policy}'", f"privacy.z={z:.12g}", "log.wandb=none"]
        shared = [word for word in search.words if _SHARED.match(word)]
        try:
            found = compose(later_wins(shared, search.tune.scoring, more))
        except ConfigError as error:
            raise ConfigError("tune.score", f"{error}") from error
        return replace(found, seed=run.seed ^ _SCORE_SEED, hyperparameter_source="privrl tune")
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
    """The account of one score, whose noise leads to `epsilon` over the search if none was given.

    Raises ConfigError: users who train would score.
    """
    steps = parts.spec.max_episode_steps
    unit = Unit(f"one user who scores a policy: one whole episode of at most {steps} steps", 1)

    def account(z: float) -> Account:
        config = score_config(search, parts.config, users, z, None)
        privacy = config.privacy
        if search.tune.scoring:
            return _estimating(parts, config).gate
        return planned_account(privacy, Block("return", 1, privacy.clip), unit, 1)

    z = search.tune.score_z
    if z is None:
        delta, at_one = parts.config.privacy.delta, [account(1.0)]
        bounded = epsilon < math.inf
        z = calibrated_search(at_one, search.runs, epsilon, delta) if bounded else 0.0
    if search.tune.scoring:  # what only the noise shows
        made = _estimating(parts, score_config(search, parts.config, users, z, None))
        try:
            made.algo.init(made.streams)
        except ConfigError as error:
            raise ConfigError("tune.score", f"{error}") from error
    return account(z)


def _estimating(parts: Plan, config: RunConfig) -> Plan:
    """The plan of a score, whose users are not those of `parts`. Raises ConfigError: they could be."""
    score = make_plan([config])
    mine, theirs = parts.users.terms().people, score.users.terms().people
    if mine is None or theirs is None or not mine.apart_from(theirs):
        raise ConfigError(
            "tune.score",
            "would score on users who train: give the search and tune.score parts of one dataset without "
            "common users, as data.part=1/2 and 2/2, and the same data.public",
        )
    ours, own = parts.config.privacy, config.privacy
    if _unit(score)[1:] != _unit(parts)[1:] or (ours.noise, ours.delta) != (own.noise, own.delta):
        raise ConfigError(
            "tune.score",
            f"has another guarantee ({own.adjacency}, noise={own.noise}, delta={own.delta:g}) than the search "
            f"({ours.adjacency}, noise={ours.noise}, delta={ours.delta:g}): make them equal",
        )
    if hasattr(score.algo, "ratios") and parts.spec.max_episode_steps > 1 and _is_greedy(parts):
        raise ConfigError(
            "tune.score",
            f"policies of algo={parts.config.algo.name} are greedy, and importance sampling finds next to "
            "no episode with all of their actions; use algo=dp_fqe",
        )
    return score


def _is_greedy(parts: Plan) -> bool:
    """Whether the first policy of a run takes one action for sure."""
    offered = getattr(parts.algo.policy, "probabilities", None)
    if offered is None:
        return False
    first = parts.algo.actor(parts.algo.init(parts.streams))[:1]
    return is_greedy(lambda obs: offered(first, obs[None], 1)[0], parts.spec.obs_dim)


# --- costs


def first_setting(search: Search) -> list[str]:
    """Words of one setting."""
    return [f"{one.key}={one.ends[0]}" for one in search.space]


def runs_of_costs(search: Search, words: Sequence[str]) -> list[Plan]:
    """A run for each cost and set of caveats that drawn settings can lead to.

    All combinations of choices outside `algo`; those of `algo` one key at a time. `covers` finds other ones.

    Raises:
        ConfigError: a run cannot be made, or settings differ in what one user is.
    """
    choices = [one for one in search.space if one.kind == "choice"]
    outside = [one for one in choices if not one.key.startswith("algo.")]
    settings = [
        [f"{one.key}={value}" for one, value in zip(outside, values, strict=True)]
        for values in itertools.product(*(one.values for one in outside))
    ]
    settings += [
        [f"{one.key}={value}"] for one in choices if one not in outside for value in one.values[1:]
    ]
    found: dict[Any, Plan] = {}
    for own in settings:
        config = compose([*words, *later_wins(first_setting(search), own)])
        check_hardware(config)
        parts = make_plan([config])
        found.setdefault((cost_of(parts), frozenset(_caveats(parts))), parts)
        if _unit(parts) != _unit(next(iter(found.values()))):
            raise ConfigError(
                own[0].partition("=")[0],
                f"{' '.join(own)} changes what one user is ({parts.gate.unit.text}); search each alone",
            )
    return list(found.values())


def covers(known: Sequence[Plan], parts: Plan) -> bool:
    """Whether an analysis of `known` is one of this run, too: its cost, unit and caveats."""
    caveats = {name for one in known for name in _caveats(one)}
    costs = [cost_of(one) for one in known]
    same = _unit(parts) == _unit(known[0]) and _caveats(parts) <= caveats
    return same and cost_of(parts) in costs


def _caveats(parts: Plan) -> set[str]:
    return set(parts.gate.guarantee(0).caveats) - {PART_OF_SEARCH}


def _unit(parts: Plan) -> tuple[str, str, str]:
    """What the guarantee is about."""
    found = parts.gate.guarantee(0)
    return found.unit, found.notion, found.adjacency


def cost_of(parts: Plan) -> Any:
    """What a run costs, for comparison: its event and how often one user is in it."""
    return parts.gate.mechanism.planned_releases(0, parts.gate.participation)


def together(parts: Sequence[Guarantee], **notes: str) -> Guarantee:
    """The guarantee that covers each of several runs, of the same users or of others.

    It has the largest epsilon (users who are in one run only: parallel composition), and the caveats of all.

    Args:
        parts: of the runs; of two notes of one name the first counts.
        **notes: further ones, which replace those of the runs.
    """
    caveats = {name: why for part in parts for name, why in part.caveats.items()}
    known = {name: why for part in reversed(parts) for name, why in part.notes.items()}
    return replace(
        parts[0],
        epsilon=max(part.epsilon for part in parts),
        unit="; or, of other users, ".join(dict.fromkeys(part.unit for part in parts)),
        caveats=caveats,
        notes=known | notes,
    )


def search_epsilon(
    accounts: Sequence[Account], runs: RunCount | int, delta: float, scale: float = 1.0
) -> float:
    """Epsilon of a search over runs that each cost what one of `accounts` says.

    The settings of a run are drawn: a run is a mixture over `accounts`, whose delta at any epsilon is at most
    the largest of theirs. Where none of them is the worst at every delta, a fixed number of
    runs is composed at delta / runs each.

    Args:
        accounts: one for each cost that a run can have; rounds that their ledgers repeat are counted.
        runs: the distribution of the number of runs, of which the best is released; or a fixed number, and
            all may be.
        delta: of the search.
        scale: factor of the noise multiplier, for calibration.
    """
    costs = [epsilon_by_delta(one, scale) for one in accounts]

    def cost(at: float) -> float:
        return max(one(at) for one in costs)

    if not cost(delta) < math.inf:
        return math.inf
    if not isinstance(runs, int):
        return profile_epsilon(cost, runs, delta)
    repeated = any(one.ledgers[0].summary()["repeated"] for one in accounts)
    worst = None if repeated else _dominating(accounts)
    return (
        runs * cost(delta / runs) if worst is None else epsilon_by_delta(worst, scale, runs)(delta)
    )


def epsilon_by_delta(
    account: Account, scale: float = 1.0, times: int = 1
) -> Callable[[float], float]:
    """Delta -> epsilon of a run: all planned rounds, and repeated ones that its ledger has.

    Args:
        account: of the run.
        scale: see `search_epsilon`.
        times: so many independent runs like this one, composed; repeated rounds are not counted then.
    """
    mechanism, ledger = account.mechanism, account.ledgers[0]
    event, count = mechanism.planned_releases(0, account.participation)
    one = replace(event, z=event.z * scale)
    # Of independent Gaussian runs 1 / z^2 adds up; the mechanism itself composes rounds of one run.
    gaussian = ledger_class(event.mechanism).gaussians(((one, count),)) is not None
    together = replace(one, z=one.z / math.sqrt(times))
    planned = {together: count} if gaussian else {one: count * times}
    repeated = times == 1 and bool(ledger.summary()["repeated"])
    slack = (times - 1) * mechanism.slack(0)  # beyond that of one run, which `epsilon_of` has

    def cost(delta: float) -> float:
        if account.is_preview or not mechanism.private or mechanism.too_many(ledger, None):
            return math.inf
        at = delta * (1.0 - slack)
        found = account.epsilon_of(0, planned, at) + slack
        return max(found, account.spent_epsilon(0, delta=at)) if repeated else found

    return cost


def _dominating(accounts: Sequence[Account]) -> Account | None:
    """The account that costs most at every delta; None: none is known to.

    Of Gaussian releases the one with the least joint multiplier, and of releases that are alike but for z the
    one with the least z: the others are that with more noise.
    """
    planned = [one.mechanism.planned_releases(0, one.participation) for one in accounts]
    noise = [event.z for event, _ in planned]
    if len({(replace(event, z=1.0), count) for event, count in planned}) > 1:
        parts = [ledger_class(e.mechanism).gaussians(((e, n),)) for e, n in planned]
        if None in parts or len({event.adjacency for event, _ in planned}) > 1:
            return None
        noise = [joint_z([z for z, count in part or () for _ in range(count)]) for part in parts]
    return accounts[noise.index(min(noise))]


def calibrated_search(
    accounts: Sequence[Account], runs: RunCount | int, target: float, delta: float
) -> float:
    """Smallest z, to 6 digits, with which a search costs at most `target`.

    Args:
        accounts: see `search_epsilon`; all with the same z > 0.
        runs: see `search_epsilon`.
        target: epsilon of the search.
        delta: of the search.

    Raises:
        PrivacyError: no z does.
    """
    own = accounts[0].config.noise_multiplier
    if not own:
        raise PrivacyError("z = 0 has no noise to calibrate")
    return least_noise(lambda z: search_epsilon(accounts, runs, delta, z / own), target)


def search_guarantee(
    epsilon: float, delta: float, runs: RunCount | int, parts: Sequence[Guarantee]
) -> Guarantee:
    """The guarantee of everything that a search releases.

    Args:
        epsilon: of `search_epsilon`, the largest over `parts`.
        delta: of the search.
        runs: see `search_epsilon`.
        parts: of the runs about their users, who are the same unit in all; and of the score, about others.
    """
    alone = "epsilon is for this search alone; other runs about the same users compose"
    found = together(parts, runs=alone, search=describe(runs))
    notes = found.notes
    if "scope" in notes:
        notes["scope"] = notes["scope"].replace("not tuning on the same users, ", "")
    return replace(found, epsilon=epsilon, delta=delta)


def describe(runs: RunCount | int) -> str:
    """What a search releases, in words."""
    if isinstance(runs, int):
        return f"{runs} runs, composed: epsilon covers the release of all of them"
    law = "Poisson" if runs.poisson else f"truncated negative binomial, shape {runs.shape:g}"
    return (
        f"the best of a random number of runs ({law}, {runs.mean:g} in the mean) is released; their number, "
        "the settings and results of the others, and the time that the search takes stay secret"
    )
