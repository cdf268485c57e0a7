"""Rules between the sections of a run. Ranges of single settings are declared beside them: `ranges.py`.

These hold for every run; `given_rules.py` has the rules of what the command line gives.
"""

from __future__ import annotations

from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.config.traits import Data, Draws, Product
from privrl_bench.errors import ConfigError, require, require_among, require_choice
from privrl_bench.privacy.rules import drawing, taking

# Of users who give such data: how a sampler may draw them.
DRAWS_OF: dict[Data, tuple[Draws, ...]] = {
    Data.LIVE: (Draws.NEXT, Draws.EACH),
    Data.KEPT: (Draws.EACH,),
    Data.RECORDED: tuple(Draws),
    Data.ACTED: (Draws.NEXT, Draws.ONE, Draws.ALL),
    Data.TEXTS: (Draws.NEXT,),
}


def check_run(run: RunConfig) -> None:
    """Refuse combinations of settings that have no meaning or no analysis. Raises `ConfigError`."""
    for rule in RULES:
        rule(run)


def refuse(when: bool, key: str, problem: str) -> None:
    """Raise `ConfigError` if `when`."""
    if when:
        raise ConfigError(key, problem)


def _takes(run: RunConfig, key: str, value: str, allowed: tuple[str, ...]) -> None:
    require_among(key, value, allowed, f"algo={run.algo.name} takes")


# --- rules of every run


def _prompts(run: RunConfig) -> None:
    """Prompts and an algorithm that answers them go together."""
    texts, answers = run.env.kind == "text", Data.TEXTS in run.algo.traits.data
    refuse(
        texts and not answers,
        "env",
        f"{run.env.name} is prompts and answers, from which algo={run.algo.name} does not learn; "
        "use algo=dppg or algo=ppo",
    )
    refuse(
        answers and not texts,
        "env",
        f"{run.env.label} has no prompts, which algo={run.algo.name} answers",
    )


def _text_settings(run: RunConfig) -> None:
    """Settings that have no meaning for texts stay at their defaults."""
    if run.env.kind != "text":
        return
    if run.privacy.rules.mechanism.on_devices:
        raise ConfigError("privacy", "local adds noise to numbers, and a text has none")
    plain = EnvConfig(id="any")
    keys = ("domain", "task", "kwargs", "wrappers", "backend", "obs_mean", "obs_std", "action")
    for key in (*keys, "reward_scale", "obs_low", "obs_high", "reward_low", "reward_high"):
        value = getattr(run.env, key)
        require(f"env.{key}", value == getattr(plain, key), "left out for texts", value)
    require_choice("eval.policy", run.eval.policy, ("stochastic",))


def _mechanism(run: RunConfig) -> None:
    """The algorithm can be used with the mechanism."""
    algo, mechanism = run.algo, run.privacy.rules.mechanism
    if mechanism.on_devices:
        offline = run.source is Data.RECORDED
        why = "learns from a dataset" if offline else "needs the gate's clip and noise"
        refuse(
            offline or not algo.traits.noised_observations,
            "privacy",
            f"local is noise on live users' devices, but algo={algo.name} {why}",
        )
        return
    taken = taking(algo.traits.sends)
    refuse(
        all(kind.calibrated for kind in taken) and not mechanism.private,
        "privacy",
        f"algo={algo.name} is private by construction; for a run without noise use privacy.z=0, "
        "for a non-private baseline algo=ppo or algo=a2c",
    )
    _takes(run, "privacy.mechanism", mechanism.name, tuple(kind.name for kind in taken))


def _noise(run: RunConfig) -> None:
    """Without a mechanism there is no noise."""
    z = run.privacy.z
    if not run.privacy.rules.mechanism.private and z:
        raise ConfigError("privacy.z", f"privacy=none adds no noise, so it must be 0, got {z:g}")


def _sampling(run: RunConfig) -> None:
    """The algorithm and its collector can be used with the sampling."""
    mechanism, sampler = run.privacy.rules
    draws = [one for one in run.algo.traits.draws if one in DRAWS_OF[run.source]]
    _takes(run, "privacy.sampling", sampler.name, drawing(draws))
    learns = run.source is Data.RECORDED and run.algo.traits.releases is not Product.VALUES
    if learns and mechanism.private and not sampler.independent:
        raise ConfigError(
            "privacy.sampling", f"algo={run.algo.name} draws its users: use privacy=poisson"
        )
    starts = " or ".join(unit for unit in run.algo.traits.units if unit != "segment")
    refuse(
        sampler.independent and run.env.user == "segment",
        "env.user",
        "with privacy.sampling=poisson users come and go, so a user must start from a reset: use "
        f"{starts}, got 'segment'",
    )


def _population(run: RunConfig) -> None:
    """A bound on the users of fixed cohorts bounds live users that are used once."""
    privacy = run.privacy
    offline = run.source is Data.RECORDED and run.algo.traits.releases is not Product.VALUES
    bounded = not privacy.rules.sampler.every_round and privacy.population is not None
    why = f"algo={run.algo.name} takes from a dataset" if offline else "env.user=segment has"
    refuse(
        bounded and (offline or run.env.user == "segment"),
        "privacy.population",
        f"bounds the users of fixed cohorts, each used once, and {why} others",
    )
    how = f"limits users that are used once; privacy.sampling={privacy.sampling} draws them"
    refuse(run.fit_population and privacy.rules.sampler.every_round, "fit_population", how)


def _unit(run: RunConfig) -> None:
    """The algorithm can be used with the definition of a user."""
    _takes(run, "env.user", run.env.user, run.algo.traits.units)


def _evaluated_policy(run: RunConfig) -> None:
    """A policy that acted, and its users, where an algorithm evaluates one, and nowhere else."""
    algo = run.algo
    if Data.ACTED not in algo.traits.data:
        refuse(
            run.data.policy is not None, "data.policy", f"algo={algo.name} learns its own policy"
        )
        return
    refuse(
        run.data.policy is None,
        "data.policy",
        f"algo={algo.name} evaluates from the trajectories of a known policy: give it, e.g. "
        "data.policy=uniform (with a dataset, too: errors are measured under it)",
    )
    refuse(
        run.source is Data.ACTED and run.privacy.population is None,
        "privacy.population",
        "give the number of users that act with data.policy, e.g. privacy.population=1000",
    )
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
    refuse(
        algo.traits.one_round and run.rounds not in (None, 1),
        "rounds",
        f"algo={algo.name} has one release, got {run.rounds}",
    )
    refuse(
        algo.traits.one_cohort and run.privacy.users_per_round not in (1, run.privacy.population),
        "privacy.users_per_round",
        f"algo={algo.name} takes all users in one round (privacy.population): leave it out, got "
        f"{run.privacy.users_per_round}",
    )


def _dataset(run: RunConfig) -> None:
    """A dataset where one is needed, and nowhere else."""
    algo = run.algo
    refuse(
        run.source is Data.RECORDED and run.data.id is None,
        "data.id",
        f"algo={algo.name} learns from a dataset: data.id=<a local Minari dataset>; "
        "privrl collect makes one",
    )
    refuse(
        run.data.id is not None and Data.RECORDED not in algo.traits.data,
        "data.id",
        f"algo={algo.name} acts with its own policy while it learns, and takes no dataset",
    )


def _scaling(run: RunConfig) -> None:
    """Scaling by users' data is in the release, or in the public part of a dataset."""
    obs, reward = run.env.obs_scaling, run.env.reward_scaling
    offline = run.source is Data.RECORDED
    refuse(
        obs == "split" and not offline,
        "env.obs_scaling",
        "split is the public part of a dataset; without data.id use public, private, running or none",
    )
    refuse(
        offline and bool({"private", "running"} & {obs, reward}),
        "env.obs_scaling",
        "for a dataset use split, public or none; reward_scaling: public",
    )
    for key, value in (("obs_scaling", obs), ("reward_scaling", reward)):
        refuse(
            value == "private" and not run.algo.traits.learns_scaling,
            f"env.{key}",
            f"private is a block of a private release, which algo={run.algo.name} does not make; "
            "use public, running or none",
        )


def _device(run: RunConfig) -> None:
    """A GPU is requested only where it is used."""
    refuse(
        run.hardware.device not in run.algo.traits.devices,
        "hardware",
        f"algo={run.algo.name} computes on the CPU only; use hardware=cpu",
    )


RULES = (
    *(_prompts, _text_settings, _mechanism, _dataset, _unit, _sampling, _evaluated_policy),
    *(_scaling, _population, _noise, _device),
)
