"""The dataset of an offline run, and what its configuration takes from it."""

from __future__ import annotations

from dataclasses import replace

from privrl_bench.collectors.dataset import Dataset, open_data, scaled_by
from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Product
from privrl_bench.datasets.user_keys import REAL, SIMULATED, collected_before, users_said
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.declared_users import check_noise
from privrl_bench.types import EnvSpec


def with_data(configs: list[RunConfig]) -> tuple[EnvSpec, Dataset, list[RunConfig]]:
    """The public facts, the dataset, and the configurations with its scaling and number of users.

    Raises ConfigError: the configuration does not fit the dataset.
    """
    config = configs[0]
    free = (
        replace(config.env, obs_scaling="none") if config.env.obs_scaling == "split" else config.env
    )
    spec = env_spec(free)
    data = open_data(config.data, spec)
    _check_users(config, spec, data)
    env, population = scaled_by(config.env, data), config.privacy.population
    sampler = config.privacy.rules.sampler
    if sampler.independent and (population or data.users) < data.users:
        raise ConfigError(
            "privacy.population",
            f"must be at least the {data.users} private users of {data.name}, got {population}",
        )
    cohort = config.privacy.users_per_round
    if sampler.independent and population is None and data.users < cohort:
        raise ConfigError(
            "privacy.users_per_round",
            f"must be at most the {data.users} private users of {data.name}, got {cohort}",
        )
    found = []
    evaluates = config.algo.traits.releases is Product.VALUES
    if evaluates and population not in (None, data.users):
        raise ConfigError(
            "privacy.population",
            f"is exact and public: the {data.users} private users of {data.name}, or unset; got {population}",
        )
    if evaluates:
        target = getattr(config.algo, "target", None)
        known = data.trajectories.behavior_probs is not None
        if target not in (None, config.data.policy) and not known:
            raise ConfigError(
                "data.id",
                f"{data.name} has no behaviour probabilities, which importance ratios to algo.target={target} "
                "need; privrl collect policy=... writes data with them",
            )
    for c in configs:
        privacy = c.privacy
        if sampler.every_round or evaluates:
            privacy = replace(privacy, population=population or data.users)
        if sampler.independent:  # see `guarantee_terms.neighbours_of`
            privacy = replace(privacy, adjacency="zero_out")
        found.append(replace(c, env=env, privacy=privacy))
    return spec, data, found


def _check_users(config: RunConfig, spec: EnvSpec, data: Dataset) -> None:
    """Refuse seeded noise where the dataset does not say that its users are simulated. Raises ConfigError."""
    found = data.trajectories
    said = users_said(found.card)
    ours = collected_before(found.card) and found.env_id == config.env.id and spec.users is None
    if said == SIMULATED or (said is None and ours):
        return
    if said == REAL:
        check_noise(config, f"the users of {data.name} are real")
    mark = f"minari.load_dataset({data.name!r}).storage.update_metadata({{'users': {SIMULATED!r}}})"
    who = f"{data.name} does not say that its users are simulated"
    check_noise(config, who, f", or, if they are simulated, say so once: {mark}")
