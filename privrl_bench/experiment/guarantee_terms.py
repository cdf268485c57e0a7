"""What a configuration says of its guarantee: the unit, what is outside it, and what it assumes."""

from __future__ import annotations

from privrl_bench.algorithms.base import Algorithm
from privrl_bench.collectors.dataset import Dataset
from privrl_bench.config.schema import EnvConfig, PrivacyConfig, RunConfig
from privrl_bench.config.traits import Data, Product
from privrl_bench.datasets.split import moments
from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.experiment import declared_users
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Unit
from privrl_bench.types import EnvSpec

CARRIED_OVER = "carried-over environment"
NOT_PRIVATE = "not private"


def unit_of(
    config: RunConfig, spec: EnvSpec, steps: int, data: Dataset | None, algo: Algorithm
) -> Unit:
    """The privacy unit: the mechanism's, the algorithm's, or that of environment and data."""
    mechanism, sampler = config.privacy.rules
    one_trajectory = data is None or data.most == 1
    limit, who = spec.max_episode_steps, spec.one_user
    in_order = declared_users.in_order(config)
    return (
        mechanism.unit(config.env, config.privacy, spec, steps)
        or (algo.terms().unit if one_trajectory else None)
        or unit_in_words(config.env, limit, steps, sampler.independent, data, who, in_order)
    )


def unit_in_words(
    config: EnvConfig,
    max_episode_steps: int,
    steps: int,
    poisson: bool,
    data: Dataset | None = None,
    who: str = "one user",
    in_order: bool = False,
) -> Unit:
    """What one user is in words, and how many releases their data can enter.

    `who`: `EnvSpec.one_user`. `in_order`: see `declared_users`.

    An episode of `max_episode_steps` steps that may begin anywhere in a segment of `steps` touches at most
    (max_episode_steps + steps - 2) // steps + 1 segments.
    """
    if data is not None:
        what = (
            "one trajectory"
            if data.most == 1
            else f"all trajectories of one user, up to {data.most},"
        )
        what += f" of at most {max_episode_steps} steps"
        if in_order:
            return Unit(f"{what}, used once", 1)
        return Unit(f"{what}, in any of the rounds", None)
    if poisson:
        what = "one episode" if config.user == "episode" else f"{steps} steps from a reset"
        return Unit(f"{who} with all their rounds (each round: {what})", None)
    if config.user == "segment":
        touched = (max_episode_steps + steps - 2) // steps + 1
        return Unit(
            f"{who}: one episode of at most {max_episode_steps} steps, with every segment of {steps} steps "
            f"that it touches (up to {touched})",
            touched,
        )
    if config.user == "fresh":
        return Unit(f"{who}: {steps} steps from a reset, used once", 1)
    return Unit(f"{who}: one whole episode of at most {steps} steps, used once", 1)


def caveats_of(config: RunConfig, algo: Algorithm) -> dict[str, str]:
    """Everything in the configuration that lets private data past the gate, by name.

    With noise on the users' devices nothing does: algorithm and scaling are post-processing, and neighbours
    share rewards and ends, so that one episode does not move where another begins.
    """
    mechanism = config.privacy.rules.mechanism
    caveats: dict[str, str] = {}
    if config.search is not None:
        caveats[PART_OF_SEARCH] = f"one of several runs, chosen by their results; {config.search}"
    if mechanism.on_devices:
        return caveats
    caveats |= algo.terms().caveats
    if not mechanism.private:
        caveats[NOT_PRIVATE] = "privacy=none: nothing is clipped, noised or bounded"
    elif config.env.user == "segment" and config.source is not Data.RECORDED:
        caveats[CARRIED_OVER] = (
            "an episode shares its segments with others and shapes when and where later ones run; "
            "epsilon is for nulling every segment it touches, not for the episode alone"
        )
    if config.env.obs_scaling == "running":
        caveats[RUNNING_OBS] = "earlier users' observations scale later users' without noise"
    if config.env.reward_scaling == "running":
        caveats[RUNNING_REWARD] = "earlier users' rewards scale later users' without noise"
    return caveats


def notes_of(config: RunConfig, spec: EnvSpec, data: Dataset | None = None) -> dict[str, str]:
    """What the guarantee takes as public or given, the noise apart."""
    notes: dict[str, str] = {}
    mechanism, sampler = config.privacy.rules
    if not mechanism.private:
        return notes
    public = ["hyperparameters", f"U={config.privacy.users_per_round}", "the number of rounds"]
    if {"public", "private"} & {config.env.obs_scaling, config.env.reward_scaling}:
        public.append("the scaling constants of env")
    listed = declared_users.in_order(config)
    bounded = config.privacy.population is not None and not sampler.every_round and not listed
    if data is None and (sampler.independent or bounded):
        public.append("population, a bound on the number of users")
    public += mechanism.public
    notes |= mechanism.notes(config.privacy)
    if data is not None:
        split = data.split
        public += [
            f"T={config.env.max_episode_steps or 'the episode limit'}",
            f"at most {data.most} episode{'s' if data.most > 1 else ''} of one user",
            "how many episodes there are, and the keys of their metadata",
        ]
        if sampler.every_round or listed:
            exact = config.privacy.population == split.users
            what = "exactly the private users" if exact else "a bound on the private users"
            public.append(f"population={config.privacy.population}, {what}")
            notes["neighbours"] = neighbours_of(config.privacy, split.users)
        key = data.trajectories.user_key
        who = f"the metadata key {key!r} names the users" if key else "each episode is a user"
        notes["dataset"] = (
            f"{split.public_users} of {split.public_users + split.users} users are public and unprotected: "
            f"{_taken_from(data, config)}; no user's data may depend on "
            f"another's, although the collecting policy may have learned from one to the next; {who}"
        )
    elif config.algo.traits.releases is Product.VALUES:
        public.append(f"population={config.privacy.population}, exactly the users who played")
        notes["people"] = "a user's randomness is their own, whoever else played"
    elif sampler.independent:
        notes["people"] = "a user's randomness is their own, whoever else joins the round"
    if listed:
        notes["order"] = (
            "users take part in the order of the list, which does not depend on their data"
        )
    if data is None and spec.users is not None:
        public.append("the number of users that the environment declares")
        notes |= declared_users.notes_of(sampler.every_round and config.source is not Data.KEPT)
    notes["scope"] = _scope(config, live=data is None and config.env.kind != "text")
    notes["public information"] = ", ".join(public)
    return notes


def _taken_from(data: Dataset, config: RunConfig) -> str:
    """What a run takes from the public users of its dataset."""
    # A built configuration has the moments of `env.obs_scaling=split` as constants; see `scaled_by`.
    mean, std, _, _ = moments(data.trajectories, data.split.public)
    scales = (config.env.obs_mean, config.env.obs_std) == (mean.tolist(), std.tolist())
    taken = ["the scaling"] if scales else []
    taken += [config.algo.traits.public_data] if config.algo.traits.public_data else []
    return f"their data give {', '.join(taken)}" if taken else "their data are not used"


_EVALUATION = {
    Product.POLICY: "evaluation episodes are simulated",
    Product.VALUES: "errors are measured with the environment's tables, or with simulated trajectories of "
    "no user",
    Product.TEXT_POLICY: "evaluation prompts are public",
}


def _scope(config: RunConfig, live: bool) -> str:
    """What is outside the guarantee of any run of this kind. `live`: users step environments."""
    outside = "not tuning on the same users, not timing"
    parts = [outside + (", not a stop caused by a user's failing environment" if live else "")]
    parts.append(_EVALUATION[config.algo.traits.releases])
    if live:
        parts.append(
            "an environment's reset must forget the user before, and environments must share nothing"
        )
    parts.append(
        "a user with non-finite data counts as absent (train/invalid_users, which is private, counts them)"
    )
    return "; ".join(parts)


# Not add_or_remove: the users of a dataset keep their places, see `neighbours_of`.
RELATIONS_OF_DATASETS = ("zero_out", "replace_one", "any_trajectory_pair")


def neighbours_of(privacy: PrivacyConfig, users: int) -> str:
    """Which datasets of as many users are neighbours, in words.

    Which users are public is decided by how many there are and in which order. So their number is public
    whatever `privacy.population` is, and a neighbour has the same users in the same places.
    """
    number = f"N = {users}, the number of private users in the dataset, is taken as public"
    if int(privacy.population or 0) > users:
        number = f"the dataset's number of private users, {users}, is taken as public, too"
    one = "has no data" if privacy.adjacency == "zero_out" else "has other data"
    return f"one private user {one}, and all users keep their places; {number}"
