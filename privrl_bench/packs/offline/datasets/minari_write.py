"""Write episodes as a local Minari dataset.

Minari and Gymnasium are imported where they are used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.minari_spaces import (
    as_stored,
    check_choices,
    flat_action_space,
    flat_space,
)
from privrl_bench.packs.offline.datasets.trajectories import Episode, check_episode
from privrl_bench.packs.offline.datasets.user_keys import OURS, REAL, SIMULATED

if TYPE_CHECKING:
    import gymnasium as gym

METADATA_KEY = "privrl_bench"  # of this package, in a dataset's metadata
PROBS_KEY = "behaviour_probabilities"  # in `infos`, [T + 1]; the entry of a reset is NaN
_STANDARD = ("algorithm_name", "description", "code_permalink", "requirements", "users")


def datasets_root() -> Path:
    """Return the folder in which Minari keeps datasets."""
    named = os.environ.get("MINARI_DATASETS_PATH")
    return Path(named) if named is not None else Path.home() / ".minari" / "datasets"


def check_id(dataset_id: str) -> str | None:
    """Return the namespace of a well-formed id.

    Raises:
        ConfigError: The id is malformed.
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        return parse_dataset_id(dataset_id)[0]
    except (ValueError, TypeError):  # Minari's TypeError: no version
        raise ConfigError(
            "data.id",
            "must have the form name-v0 or group/name-v0, of letters, digits, _ and -, a group of at "
            f"least two, got {dataset_id!r}",
        ) from None


def write_minari(
    dataset_id: str,
    episodes: Iterable[Episode],
    env_id: str | None,
    observation_space: gym.Space,
    action_space: gym.Space,
    card: dict[str, Any],
) -> Path:
    """Write a local dataset atomically, with one episode in memory at a time.

    Args:
        dataset_id: `name-v0` or `group/name-v0`.
        episodes: Observations [T + 1, D] and actions are written flat, in the flattened spaces. The user
            of an episode goes to its metadata, behaviour probabilities to `infos`.
        env_id: Gymnasium id; None: not registered there.
        observation_space: Of the environment.
        action_space: Of the environment, Box or Discrete.
        card: JSON-serialisable. Its `users` says who they are: `simulated`, or `real` people. Its
            algorithm_name, description, code_permalink (text) and requirements (list) also become Minari's
            own fields, `users` an entry beside them.

    Returns:
        The dataset's folder.

    Raises:
        ValueError: The card does not say who the users are.
        ConfigError: On data.id: the id is malformed or exists, the action space is not supported, an
            episode is invalid (see `check_episode`), there are none, or only some name their user.
    """
    from minari.dataset.minari_storage import MinariStorage

    namespace, metadata = check_id(dataset_id), _metadata(dataset_id, env_id, card)
    folder = datasets_root() / dataset_id
    if folder.exists():
        raise ConfigError(
            "data.id", f"{dataset_id} exists already at {folder}; choose another name or version"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Hidden, so that neither Minari nor `local_ids` lists it.
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
        inside = Path(temporary) / "dataset"
        inside.mkdir()
        storage = MinariStorage.new(
            inside / "data",
            observation_space=flat_space(observation_space),
            action_space=flat_action_space(action_space),
            env_spec=_spec(env_id),
            data_format="hdf5",
        )
        storage.update_metadata(metadata)
        users: dict[int, str] = {}
        storage.update_episodes(
            _buffers(episodes, users, storage.observation_space, storage.action_space)
        )
        _write_users(storage, users)
        _create_namespace(namespace)
        os.rename(inside, folder)
    return folder


def _metadata(dataset_id: str, env_id: str | None, card: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a dataset; arguments as in `write_minari`. Raises ValueError."""
    import minari

    if card.get("users") not in (SIMULATED, REAL):
        said = card.get("users")
        raise ValueError(f"card['users'] must be {SIMULATED!r} or {REAL!r}, got {said!r}")

    return {
        "dataset_id": dataset_id,
        "minari_version": minari.__version__,
        **{key: card[key] for key in _STANDARD if card.get(key) is not None},
        METADATA_KEY: {"env_id": env_id, "card": card},
    }


def _write_users(storage: Any, users: dict[int, str]) -> None:
    """Write the users' names by episode number to the episodes' metadata. Raises ConfigError."""
    if not storage.total_episodes:
        raise ConfigError("data.id", "there are no episodes")
    if users and len(users) < storage.total_episodes:
        raise ConfigError(
            "data.id",
            f"{len(users)} of {storage.total_episodes} episodes name their user: all or none",
        )
    if users:
        storage.update_episode_metadata(({OURS: name} for name in users.values()), users)


def _create_namespace(namespace: str | None) -> None:
    from minari.namespace import create_namespace, list_local_namespaces

    if namespace is not None and namespace not in list_local_namespaces():
        create_namespace(namespace)


def _spec(env_id: str | None) -> Any:
    """Gymnasium's EnvSpec; None for an environment that is not registered."""
    import gymnasium as gym

    if env_id is None:
        return None
    try:
        return gym.spec(env_id)
    except (gym.error.Error, ImportError):
        return None


def _buffers(
    episodes: Iterable[Episode],
    users: dict[int, str],
    observation_space: gym.Space,
    action_space: gym.Space,
) -> Iterator[Any]:
    """Yield checked episodes as Minari's EpisodeBuffers; fills `users` by episode number."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    (obs_dim,) = observation_space.shape or ()
    for number, given in enumerate(episodes):
        episode = as_stored(given)
        check_episode(episode, number, obs_dim, action_space.shape)
        check_choices(episode.actions, number, action_space)
        if episode.user is not None:
            users[number] = episode.user
        yield EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos=_infos(episode.behavior_probs),
        )


def _infos(behavior_probs: np.ndarray | None) -> dict[str, np.ndarray]:
    """`infos` of a reset and all steps. Minari cannot print an episode without the dictionary."""
    if behavior_probs is None:
        return {}
    return {PROBS_KEY: np.concatenate([np.array([np.nan], np.float32), behavior_probs])}
