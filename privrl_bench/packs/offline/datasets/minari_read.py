"""Open local Minari datasets as flat memory-mapped arrays.

Only local files are read; `minari download` fetches public datasets. Minari and Gymnasium are imported
where they are used: opening a cached dataset needs neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.packs.offline.datasets.flat_files import load_flat, save_flat
from privrl_bench.packs.offline.datasets.minari_spaces import (
    as_stored,
    check_choices,
    flat_action_space,
    flat_space,
    flatten_steps,
)
from privrl_bench.packs.offline.datasets.minari_write import (
    METADATA_KEY,
    PROBS_KEY,
    check_id,
    datasets_root,
)
from privrl_bench.packs.offline.datasets.trajectories import Episode, Trajectories, check_episode
from privrl_bench.packs.offline.datasets.user_keys import AUTO, labels_of, users_of

if TYPE_CHECKING:
    import gymnasium as gym

PUBLIC = (
    "D4RL",
    "atari",
    "metaworld",
    "minigrid",
    "mujoco",
)  # groups of the Farama Foundation's server
_LABELS = "labels"  # of a read episode
_REOPEN = 256  # episodes; an open HDF5 file keeps about 50 KB of cache for each episode read
_FORMAT = 3  # of the cache and its checks; caches of another format are not used


def local_ids() -> list[str]:
    """Return the ids of the datasets on this machine, sorted."""
    root, found = datasets_root(), []
    for folder, inside, _ in os.walk(root):
        if (Path(folder) / "data" / "metadata.json").exists():
            found.append(Path(folder).relative_to(root).as_posix())
            inside.clear()
        else:
            inside[:] = [name for name in inside if not name.startswith(".")]
    return sorted(found)


def open_dataset(dataset_id: str, user_key: str | None = AUTO) -> Trajectories:
    """Open a local dataset. The first call reads, checks and copies it to flat files in its folder.

    Args:
        dataset_id: Of a local dataset.
        user_key: Key of the episodes' metadata that names their user (see `users_of`).

    Returns:
        Observations [N + K, D], flattened as by `gymnasium.spaces.flatten`; actions flat [N, A], or [N] if
        Discrete; behaviour probabilities if all episodes have them. The card is that of `write_minari`,
        plus the dataset's metadata under `minari`.

    Raises:
        ConfigError: On data.user_key, see `users_of`. On data.id: the dataset does not exist or cannot be
            read, its action space is not supported, or an episode is invalid (see `check_episode`).
    """
    folder = datasets_root() / dataset_id
    if not (folder / "data" / "metadata.json").exists():
        check_id(dataset_id)
        raise ConfigError(
            "data.id",
            f"no dataset {dataset_id!r} in {datasets_root()}{suggest(dataset_id, local_ids())}; "
            f"{_where_from(dataset_id)}",
        )
    flat = load_flat(_flat_copy(dataset_id, folder))
    users = users_of(flat.labels, flat.episodes, user_key, dataset_id)
    return replace(flat, users=users.numbers, user_key=users.key, repeated=users.repeated)


def _where_from(dataset_id: str) -> str:
    """How to get a dataset that is not there."""
    if dataset_id.split("/")[0] in PUBLIC:
        return f"`minari download {dataset_id}` fetches it, if it is public"
    return "`minari list local` lists those that are there, docs/own_data.md shows how to make one"


def _flat_copy(dataset_id: str, folder: Path) -> Path:
    """Return the dataset's flat files; write them if they do not exist. Raises ConfigError."""
    name = f"flat2-{_fingerprint(dataset_id, folder / 'data')}"
    beside, elsewhere = folder / name, _cache_home() / name
    for cache in (beside, elsewhere):
        if cache.exists():
            return cache
    cache = beside if os.access(folder, os.W_OK) else elsewhere
    env_id, card = _about(dataset_id, folder / "data")
    with contextlib.suppress(FileExistsError):  # another process was faster
        save_flat(cache, _episodes(dataset_id), env_id, card)
    for old in folder.glob("flat*-*"):
        if old != cache:
            shutil.rmtree(old, ignore_errors=True)
    return cache


def _cache_home() -> Path:
    """Folder of caches of datasets in read-only folders."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privrl_bench"


def _fingerprint(dataset_id: str, data: Path) -> str:
    """Hash of the metadata and of the name, size and time of every file of the dataset."""
    seen = hashlib.sha256((data / "metadata.json").read_bytes())
    for folder, inside, files in os.walk(data):
        inside.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if path != data / "metadata.json":
                at = path.stat()
                seen.update(f"{path.relative_to(data)} {at.st_size} {at.st_mtime_ns}\n".encode())
    seen.update(f"{dataset_id} {_FORMAT}".encode())
    return seen.hexdigest()[:16]


def _about(dataset_id: str, data: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the environment's id and the card. Raises ConfigError."""
    try:
        metadata = json.loads((data / "metadata.json").read_text())
        ours = metadata.pop(METADATA_KEY, {})
        spec = json.loads(metadata.get("env_spec") or "{}")
        return ours.get("env_id") or spec.get("id"), {**ours.get("card", {}), "minari": metadata}
    except (ValueError, AttributeError) as error:
        raise _unreadable(dataset_id, error) from None


def _unreadable(dataset_id: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConfigError("data.id", f"{dataset_id} cannot be read: {reason}")


def _episodes(dataset_id: str) -> Iterator[Episode]:
    """Yield the dataset's episodes, checked. Raises ConfigError."""
    try:
        import minari

        storage = minari.load_dataset(dataset_id).storage
    except Exception as error:  # invalid metadata, an unknown version, a missing package
        raise _unreadable(dataset_id, error) from error
    seen, acted = storage.observation_space, storage.action_space
    (obs_dim,) = flat_space(seen).shape
    action_shape = flat_action_space(acted).shape
    raws = _raw_episodes(storage)
    number = 0
    while True:
        try:
            raw = next(raws, None)
        except KeyError as error:
            found = re.search(r"object '(\w+)' doesn't exist", str(error))  # h5py's message
            name = found[1] if found else error.args[0]
            raise ConfigError("data.id", f"episode {number}: missing: {name}") from None
        except OSError as error:
            raise _unreadable(dataset_id, error) from None
        if raw is None:
            return
        episode = _episode(raw, number, seen, acted)
        check_episode(episode, number, obs_dim, action_shape)
        check_choices(episode.actions, number, acted)
        yield episode
        number += 1


def _raw_episodes(storage: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of each episode, in any of Minari's formats. Raises KeyError, OSError."""
    total = storage.total_episodes
    for first in range(0, total, _REOPEN):
        numbers = range(first, min(first + _REOPEN, total))
        metadata = storage.get_episode_metadata(numbers)
        for fields, known in zip(storage.get_episodes(numbers), metadata, strict=True):
            behavior_probs = (fields.get("infos") or {}).get(PROBS_KEY)
            yield {**fields, _LABELS: labels_of(known), PROBS_KEY: behavior_probs}


def _episode(
    raw: dict[str, Any], number: int, observation_space: gym.Space, action_space: gym.Space
) -> Episode:
    """Flatten and cast. Raises ConfigError for values that are not numeric or do not fit the spaces."""
    from gymnasium import spaces

    name = ""
    try:
        name = "observations"
        observations = flatten_steps(observation_space, raw[name])
        name = "actions"
        actions = np.asarray(raw[name])
        if not isinstance(action_space, spaces.Discrete):
            actions = flatten_steps(action_space, actions)
        name, behavior_probs = f"infos/{PROBS_KEY}", None
        if raw[PROBS_KEY] is not None:
            behavior_probs = np.asarray(raw[PROBS_KEY], dtype=np.float32)[1:]
        name = "rewards, terminations or truncations"
        return as_stored(
            Episode(
                observations=observations,
                actions=actions,
                rewards=np.atleast_1d(raw["rewards"]),
                terminated=np.atleast_1d(raw["terminations"]),
                truncated=np.atleast_1d(raw["truncations"]),
                behavior_probs=behavior_probs,
                labels=raw[_LABELS],
            )
        )
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError("data.id", f"episode {number}: {name}: {error}") from None
