"""Whether a run has the users it needs: of an environment or a list, and `privacy.population`.

In cohorts of fixed size every user is used once, so a run needs rounds * U of them. Otherwise who takes part is
drawn from `privacy.population` numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Product
from privrl_bench.errors import ConfigError
from privrl_bench.types import EnvSpec


def with_population(configs: list[RunConfig], spec: EnvSpec) -> list[RunConfig]:
    """The same runs, whose Poisson cohorts are drawn from a known number of live users.

    `privacy.population` may be left out if the environment declares its users.

    Raises:
        ConfigError: the run cannot use declared users, or the population is missing or too small.
    """
    config, declared = configs[0], spec.users
    privacy, label = config.privacy, config.env.label
    if declared is not None and config.env.user == "segment":
        once = " or ".join(unit for unit in config.algo.traits.units if unit != "segment")
        raise ConfigError(
            "env.user",
            f"{label} declares {declared} users, and with segment a user would be in several rounds; "
            f"use {once}",
        )
    if declared is not None and config.algo.traits.releases is Product.VALUES:
        raise ConfigError(
            "algo",
            f"{label} declares {declared} users, but algo={config.algo.name} simulates who plays data.policy; "
            "use a simulator, or a dataset of them (data.id)",
        )
    if declared is not None:
        check_noise(config, f"{label} declares {declared} users")
    if not privacy.rules.sampler.every_round and declared is not None:
        if (privacy.population or declared) < declared:
            raise ConfigError(
                "privacy.population",
                f"must be at least the {declared} users that {label} declares, got {privacy.population}",
            )
        known = privacy.population or declared
        return [replace(c, privacy=replace(c.privacy, population=known)) for c in configs]
    if not privacy.rules.sampler.independent or config.source is Data.KEPT:
        return configs
    population = privacy.population or declared
    if population is None:
        raise ConfigError(
            "privacy.population",
            "Poisson sampling needs the number of users, at least "
            f"privacy.users_per_round={privacy.users_per_round}, got null",
        )
    if population < max(declared or 0, privacy.users_per_round):
        least = f"the {declared} users that {label} declares"
        if population >= (declared or 0):
            least = f"privacy.users_per_round={privacy.users_per_round}"
        raise ConfigError("privacy.population", f"must be at least {least}, got {population}")
    return [replace(c, privacy=replace(c.privacy, population=population)) for c in configs]


def check_noise(config: RunConfig, who: str, otherwise: str = "") -> None:
    """Refuse noise whose seed leaves with the run, about users who are real or may be.

    Whoever knows the seed can take the noise off a release, and knows who was drawn. Users' devices would also
    draw the same noise again in a repeated round. Without noise nothing is promised, and nothing is refused.

    Args:
        config: of the run.
        who: what is known of its users, for the message.
        otherwise: another way than secure noise, for the message.

    Raises:
        ConfigError: on privacy.noise.
    """
    privacy, mechanism = config.privacy, config.privacy.rules.mechanism
    noise = mechanism.private and (privacy.z != 0 or mechanism.one_release)
    if noise and privacy.noise == "seeded":
        raise ConfigError(
            "privacy.noise",
            f"{who}, and the seed of seeded noise is published with the run; use secure{otherwise}",
        )


def with_one_round(configs: list[RunConfig]) -> list[RunConfig]:
    """The same runs, whose number of users is known; the algorithm may take all of them in one round."""
    algo, population = configs[0].algo, configs[0].privacy.population
    if algo.traits.one_cohort and population is not None:
        return [
            replace(c, rounds=1, privacy=replace(c.privacy, users_per_round=population))
            for c in configs
        ]
    return [replace(c, rounds=1) for c in configs] if algo.traits.one_round else configs


def in_order(config: RunConfig) -> bool:
    """Whether users of a list (a dataset, or simulated once) take part in its order, each in one round.

    Without privacy, cohorts of fixed size are drawn from it.
    """
    mechanism, sampler = config.privacy.rules
    listed = config.source in (Data.RECORDED, Data.ACTED)
    return listed and mechanism.private and not sampler.every_round


def needed(config: RunConfig, rounds: int) -> int | None:
    """How many users so many rounds use, each of them once; None: they are drawn, or segments."""
    if config.source is Data.KEPT:
        return config.algo.people(rounds)
    live = config.source is not Data.RECORDED and config.env.user != "segment"
    if config.privacy.rules.sampler.every_round or not (live or in_order(config)):
        return None
    return rounds * config.privacy.users_per_round


def check_enough(config: RunConfig, spec: EnvSpec, rounds: int, round_steps: int) -> None:
    """Compare what a run needs with the users that there are.

    Args:
        config: the run.
        spec: public facts of its environment.
        rounds: releases.
        round_steps: environment steps that a round counts.

    Raises:
        ConfigError: a user would be used twice.
    """
    need = needed(config, rounds)
    bounds = [] if spec.users is None else [(spec.users, f"{config.env.label} declares")]
    if config.privacy.population is not None and not config.privacy.rules.sampler.every_round:
        says = f"{config.data.id} has" if config.data.id else "privacy.population says"
        bounds.append((config.privacy.population, says))
    if need is None or not bounds:
        return
    there, who = min(bounds)
    if need <= there:
        return
    each = config.privacy.users_per_round
    problem = f"{rounds} rounds of {each} users need {need} users, each used once; {who} {there}"
    if config.source is Data.KEPT:
        fewer = max((r for r in range(rounds) if (needed(config, r) or 0) <= there), default=0)
        problem = f"{rounds} rounds have {need} users come, each once; {who} {there}"
    else:
        fewer = there // each
    if fewer < 1:
        raise ConfigError("privacy.users_per_round", f"{problem}: not enough for one round")
    raise ConfigError(
        "rounds" if config.rounds else "total_steps",
        f"{problem}: at most {fewer} round{'s' if fewer > 1 else ''}, total_steps={fewer * round_steps}",
    )


def most_rounds(config: RunConfig, spec: EnvSpec, rounds: int) -> int:
    """As many of these rounds as there are users for, each used once; all if there are too few for one."""
    if needed(config, rounds) is None or config.privacy.rules.sampler.every_round:
        return rounds
    known = [users for users in (spec.users, config.privacy.population) if users is not None]
    if not known:
        raise ConfigError("fit_population", "needs the number of users: give privacy.population")
    there = min(known)
    return min(rounds, there // config.privacy.users_per_round) or rounds


def limited_by_population(config: RunConfig, rounds: int) -> bool:
    """Whether so many rounds, which the configuration names, are all that its population has users for."""
    there = config.privacy.population
    if config.rounds != rounds or there is None or needed(config, rounds) is None:
        return False
    drawn = config.privacy.rules.sampler.every_round
    return not drawn and rounds == there // config.privacy.users_per_round


def in_words(config: RunConfig, spec: EnvSpec, rounds: int) -> str:
    """Who takes part, for the plan: `96 of 1000 users, each used once`; empty for segments."""
    need = needed(config, rounds)
    of = "" if spec.users is None else f" of {spec.users}"
    if need is not None:
        return f"{need}{of} users, each {'comes' if config.source is Data.KEPT else 'used'} once"
    if config.privacy.rules.sampler.independent:
        return f"drawn from a population of {config.privacy.population}"
    return ""


def notes_of(drawn: bool) -> dict[str, str]:
    """What the guarantee takes for granted of an environment that declares users."""
    who = "drawn afresh and in secret in every round" if drawn else "in the order of their numbers"
    return {
        "users": f"the environment plays user k when reset(options={{'user': k}}) says so: {who}; the order "
        "and what it knows of one user do not depend on another's data",
        "evaluation": "the environment must answer reset(options={'user': None, 'evaluation': True}) with a "
        "simulation; no user's data",
    }


def with_coming(
    configs: list[RunConfig], coming: int, rounds: int, round_steps: int
) -> list[RunConfig]:
    """With `returning_users`: `population` bounds the users who come; unset, it is their number.

    Args:
        configs: of one run each.
        coming: users who come in `rounds` rounds.
        rounds: of the run.
        round_steps: steps that one round counts.

    Raises:
        ConfigError: it is no bound, or every cohort would have all users.
    """
    privacy = configs[0].privacy
    population = privacy.population or coming
    if population < coming:
        raise ConfigError(
            "privacy.population", f"must be at least the {coming} users who come, got {population}"
        )
    if privacy.users_per_round >= population and privacy.population is None:
        more = bisect_right(range(10**9), privacy.users_per_round, key=configs[0].algo.people)
        key = "rounds" if configs[0].rounds else "total_steps"
        least = more if key == "rounds" else more * round_steps
        raise ConfigError(
            key,
            f"{rounds} rounds have {coming} users, and privacy.users_per_round={privacy.users_per_round} of "
            f"them are drawn for a round: at least {key}={least}, got "
            f"{rounds if key == 'rounds' else configs[0].total_steps}",
        )
    if privacy.users_per_round >= population:
        raise ConfigError(
            "privacy.users_per_round",
            f"must be less than the {population} users it is drawn from (privacy.population), got "
            f"{privacy.users_per_round}",
        )
    return [replace(c, privacy=replace(c.privacy, population=population)) for c in configs]
