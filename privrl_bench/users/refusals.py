"""Rules of configurations that kinds of users share: each raises `ConfigError`, which names the setting."""

from __future__ import annotations

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, refuse
from privrl_bench.privacy.rules import rules


def own_policy(run: RunConfig) -> None:
    """An algorithm that learns a policy acts with it."""
    given = run.data.policy is not None
    refuse(given, "data.policy", f"algo={run.algo.name} learns its own policy")


def no_split(run: RunConfig) -> None:
    """Without a dataset there is no public part of it."""
    refuse(
        run.env.obs_scaling == "split",
        "env.obs_scaling",
        "split is the public part of a dataset; without data.id use public, private, running or none",
    )


def segments_unbounded(run: RunConfig) -> None:
    """A bound on the users of fixed cohorts bounds users who are used once."""
    if run.env.user == "segment":
        unbounded(run, "env.user=segment has")


def unbounded(run: RunConfig, why: str) -> None:
    """There is no bound on the users of fixed cohorts; `why`: they are others, in words."""
    bounded = not rules(run.privacy).sampler.every_round and run.privacy.population is not None
    refuse(
        bounded,
        "privacy.population",
        f"bounds the users of fixed cohorts, each used once, and {why} others",
    )


NO_POLICY = (
    "evaluates from the trajectories of a known policy: give it, e.g. data.policy=uniform (with a dataset, "
    "too: errors are measured under it)"
)


def known_policy(run: RunConfig) -> None:
    """An algorithm that evaluates a policy knows the one that acted. Raises ConfigError."""
    refuse(run.data.policy is None, "data.policy", f"algo={run.algo.name} {NO_POLICY}")


def evaluation(run: RunConfig) -> None:
    """What an algorithm that evaluates a policy takes of its users. Raises ConfigError."""
    algo = run.algo
    refuse(
        run.env.obs_scaling != "none",
        "env.obs_scaling",
        f"is {run.env.obs_scaling!r}, but algo={algo.name} computes features of unscaled observations: "
        "set env.obs_scaling=none",
    )
    refuse(
        run.env.reward_scaling not in ("none", "public"),
        "env.reward_scaling",
        "to evaluate a policy use none or public",
    )
    one_release(run)


def one_release(run: RunConfig) -> None:
    """What an algorithm that takes all users at once has one of. Raises ConfigError."""
    algo, privacy = run.algo, run.privacy
    refuse(
        algo.traits.one_round and run.rounds not in (None, 1),
        "rounds",
        f"algo={algo.name} has one release, got {run.rounds}",
    )
    refuse(
        algo.traits.one_cohort and privacy.users_per_round not in (1, privacy.population),
        "privacy.users_per_round",
        f"algo={algo.name} takes all users in one round (privacy.population): leave it out, got "
        f"{privacy.users_per_round}",
    )


def check_noise(run: RunConfig, who: str, otherwise: str = "") -> None:
    """Refuse noise whose seed leaves with the run, about users who are real or may be.

    Whoever knows the seed can take the noise off a release, and knows who was drawn. Users' devices would also
    draw the same noise again in a repeated round. Without noise nothing is promised, and nothing is refused.

    Args:
        run: the configuration.
        who: what is known of its users, for the message.
        otherwise: another way than secure noise, for the message.

    Raises:
        ConfigError: on privacy.noise.
    """
    privacy, mechanism = run.privacy, rules(run.privacy).mechanism
    noise = mechanism.private and (privacy.z != 0 or mechanism.one_release)
    if noise and privacy.noise == "seeded":
        raise ConfigError(
            "privacy.noise",
            f"{who}, and the seed of seeded noise is published with the run; use secure{otherwise}",
        )
