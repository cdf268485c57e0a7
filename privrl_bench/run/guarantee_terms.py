"""What a configuration says of its guarantee: the unit, what is outside it, and what it assumes."""

from __future__ import annotations

from privrl_bench.algorithms.base import Algorithm
from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.evaluation import evaluator_of
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Unit
from privrl_bench.privacy.rules import rules
from privrl_bench.users.users import Users

NOT_PRIVATE = "not private"


def unit_of(users: Users, algo: Algorithm) -> Unit:
    """The privacy unit: the mechanism's, the algorithm's, or that of the users."""
    config = users.config
    mechanism = rules(config.privacy).mechanism
    return (
        mechanism.unit(config.env, config.privacy, users.spec, users.size.steps)
        or (algo.terms().unit if users.most == 1 else None)
        or users.terms().unit
    )


def caveats_of(users: Users, algo: Algorithm) -> dict[str, str]:
    """Everything in the configuration that lets private data past the gate, by name.

    With noise on the users' devices nothing does: algorithm and scaling are post-processing, and neighbours
    share rewards and ends, so that one episode does not move where another begins.
    """
    config, mechanism = users.config, rules(users.config.privacy).mechanism
    caveats: dict[str, str] = {}
    if config.search is not None:
        caveats[PART_OF_SEARCH] = f"one of several runs, chosen by their results; {config.search}"
    if mechanism.on_devices:
        return caveats
    caveats |= algo.terms().caveats
    if not mechanism.private:
        caveats[NOT_PRIVATE] = "privacy=none: nothing is clipped, noised or bounded"
    else:
        caveats |= users.terms().caveats
    if config.env.obs_scaling == "running":
        caveats[RUNNING_OBS] = "earlier users' observations scale later users' without noise"
    if config.env.reward_scaling == "running":
        caveats[RUNNING_REWARD] = "earlier users' rewards scale later users' without noise"
    return caveats


def notes_of(users: Users) -> dict[str, str]:
    """What the guarantee takes as public or given, the noise apart."""
    notes: dict[str, str] = {}
    config, mechanism = users.config, rules(users.config.privacy).mechanism
    if not mechanism.private:
        return notes
    public = ["hyperparameters", f"U={config.privacy.users_per_round}", "the number of rounds"]
    if {"public", "private"} & {config.env.obs_scaling, config.env.reward_scaling}:
        public.append("the scaling constants of env")
    terms = users.terms()
    if terms.bounded:
        public.append("population, a bound on the number of users")
    public += [*mechanism.public, *terms.public]
    notes |= {**mechanism.notes(config.privacy), **terms.notes}
    notes["scope"] = _scope(config, live=users.in_environments)
    notes["public information"] = ", ".join(public)
    return notes


def _scope(config: RunConfig, live: bool) -> str:
    """What is outside the guarantee of any run of this kind. `live`: users step environments."""
    outside = "not tuning on the same users, not timing"
    parts = [outside + (", not a stop caused by a user's failing environment" if live else "")]
    parts.append(evaluator_of(config).note)
    if live:
        parts.append(
            "an environment's reset must forget the user before, and environments must share nothing"
        )
    parts.append(
        "a user with non-finite data counts as absent (train/invalid_users, which is private, counts them)"
    )
    return "; ".join(parts)
