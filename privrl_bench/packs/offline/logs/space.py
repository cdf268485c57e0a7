"""`env=logs`: what a dataset says of its environment, which has no simulator."""

from __future__ import annotations

from dataclasses import replace

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import spec_of_spaces
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.minari_files import open_dataset
from privrl_bench.types import EnvSpec


def env_spec(config: EnvConfig) -> EnvSpec:
    """Public facts of the environment of a dataset, `env.id`: its spaces, T and names.

    Raises:
        ConfigError: there is no dataset, or it does not say the largest number of steps of an episode.
    """
    from minari.serialization import deserialize_space

    if config.id is None:
        raise ConfigError("data.id", f"env={config.name} needs a dataset: data.id=<name>")
    card = open_dataset(config.id).card
    steps = config.max_episode_steps or card.get("logs", {}).get("steps")
    if steps is None:
        raise ConfigError(
            "env.max_episode_steps",
            f"{config.id} does not say the largest number of steps of an episode: give it",
        )
    seen, acted = (
        deserialize_space(card["minari"][f"{x}_space"]) for x in ("observation", "action")
    )
    said = card.get("logs", {})
    return replace(
        spec_of_spaces(config, seen, acted, int(steps)),
        obs_names=tuple(said.get("observations", ())),
        action_names=tuple(said.get("choices") or said.get("actions", ())),
    )
