"""Local Minari datasets: opened as flat memory-mapped arrays, and written from episodes.

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
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.packs.offline.datasets.trajectories import Episode, Trajectories, check_episode
from privrl_bench.packs.offline.datasets.user_keys import (
    AUTO,
    OURS,
    REAL,
    SIMULATED,
    labels_of,
    users_of,
)

if TYPE_CHECKING:
    import gymnasium as gym

LOGS = "logs/about.json"  # of a dataset that was imported from logs; see packs/offline/logs
METADATA_KEY = "privrl_bench"  # of this package, in a dataset's metadata
PROBS_KEY = "behaviour_probabilities"  # in `infos`, [T + 1]; the entry of a reset is NaN
# Groups of the Farama Foundation's server.
PUBLIC = ("D4RL", "atari", "metaworld", "minigrid", "mujoco")
_STANDARD = ("algorithm_name", "description", "code_permalink", "requirements", "users")
_REOPEN = 256  # episodes; an open HDF5 file keeps about 50 KB of cache for each episode read
_FORMAT = 6  # of the cache and its checks; caches of another format are not used


def datasets_root() -> Path:
    """Return the folder in which Minari keeps datasets."""
    named = os.environ.get("MINARI_DATASETS_PATH")
    return Path(named) if named is not None else Path.home() / ".minari" / "datasets"


def local_ids() -> list[str]:
    """Return the ids of the datasets on this machine, sorted."""
    root, found = datasets_root(), []
    for folder, inside, _ in os.walk(root):
        if any((Path(folder) / one).exists() for one in ("data/metadata.json", LOGS)):
            found.append(Path(folder).relative_to(root).as_posix())
            inside.clear()
        else:
            inside[:] = [name for name in inside if not name.startswith(".")]
    return sorted(found)


def check_id(dataset_id: str, key: str = "data.id") -> str | None:
    """Return the namespace of a well-formed id.

    Raises:
        ConfigError: The id is malformed.
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        return parse_dataset_id(dataset_id)[0]
    except (ValueError, TypeError):  # Minari's TypeError: no version
        raise ConfigError(
            key,
            "must have the form name-v0 or group/name-v0, of letters, digits, _ and -, a group of at "
            f"least two, got {dataset_id!r}",
        ) from None


# --- reading


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
    if (folder / LOGS).exists():
        flat = Trajectories.load((folder / LOGS).parent)
        users, key = users_of(flat.labels, flat.episodes, user_key, dataset_id)
        return replace(flat, users=users, user_key=key)
    if not (folder / "data" / "metadata.json").exists():
        check_id(dataset_id)
        how = (
            "`minari list local` lists those that are there, docs/own_data.md shows how to make one"
        )
        if dataset_id.split("/")[0] in PUBLIC:
            how = f"`minari download {dataset_id}` fetches it, if it is public"
        near = suggest(dataset_id, local_ids())
        raise ConfigError("data.id", f"no dataset {dataset_id!r} in {datasets_root()}{near}; {how}")
    flat = _flat_copy(dataset_id, folder)
    users, key = users_of(flat.labels, flat.episodes, user_key, dataset_id)
    return replace(flat, users=users, user_key=key)


def _flat_copy(dataset_id: str, folder: Path) -> Trajectories:
    """Return the dataset's flat files; write them if they do not exist. Raises ConfigError."""
    place = folder
    if not os.access(folder, os.W_OK):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        place = Path(home) / "privrl_bench"
    cache = place / f"flat-{_fingerprint(dataset_id, folder / 'data')}"
    if not cache.exists():
        made = _imported(dataset_id, folder / "data")
        with contextlib.suppress(FileExistsError):  # another process was faster
            made.save(cache)
        for old in folder.glob("flat*-*"):
            if old != cache:
                shutil.rmtree(old, ignore_errors=True)
    return Trajectories.load(cache)


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


def _unreadable(dataset_id: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConfigError("data.id", f"{dataset_id} cannot be read: {reason}")


def _imported(dataset_id: str, data: Path) -> Trajectories:
    """Read and check a dataset with Minari. Raises ConfigError."""
    try:
        import minari

        metadata = json.loads((data / "metadata.json").read_text())
        ours = metadata.pop(METADATA_KEY, {})
        card = {**ours.get("card", {}), "minari": metadata}
        storage = minari.load_dataset(dataset_id).storage
    except Exception as error:  # invalid metadata, an unknown version, a missing package
        raise _unreadable(dataset_id, error) from error
    seen, acted = storage.observation_space, storage.action_space
    expected = _shapes(flat_space(seen), flat_action_space(acted))
    read = _read(dataset_id, storage)
    episodes = (_episode(raw, k, seen, acted) for k, raw in enumerate(read))
    return Trajectories.of(episodes, *expected, card=card)


def _shapes(seen: gym.Space, acted: gym.Space) -> tuple[Any, Any, Any]:
    """The arguments of `check_episode` for flat spaces."""
    from gymnasium import spaces

    (obs_dim,) = seen.shape or ()
    choices = None
    if isinstance(acted, spaces.Discrete):
        choices = (int(acted.start), int(acted.start + acted.n - 1))
    return obs_dim, acted.shape, choices


def _read(dataset_id: str, storage: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of each episode, in any of Minari's formats. Raises ConfigError."""
    total, number = storage.total_episodes, 0
    try:
        for first in range(0, total, _REOPEN):
            numbers = range(first, min(first + _REOPEN, total))
            metadata = storage.get_episode_metadata(numbers)
            for fields, known in zip(storage.get_episodes(numbers), metadata, strict=True):
                yield {**fields, "labels": labels_of(known)}
                number += 1
    except KeyError as error:
        found = re.search(r"object '(\w+)' doesn't exist", str(error))  # h5py's message
        name = found[1] if found else error.args[0]
        raise ConfigError("data.id", f"episode {number}: missing: {name}") from None
    except (OSError, ValueError) as error:  # Minari cannot read its own 1-D infos from Arrow
        raise _unreadable(dataset_id, error) from None


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
        if PROBS_KEY in (raw.get("infos") or {}):
            behavior_probs = np.asarray(raw["infos"][PROBS_KEY], dtype=np.float32)[1:]
        name = "rewards, terminations or truncations"
        return _as_stored(
            Episode(
                observations=observations,
                actions=actions,
                rewards=np.atleast_1d(raw["rewards"]),
                terminated=np.atleast_1d(raw["terminations"]),
                truncated=np.atleast_1d(raw["truncations"]),
                behavior_probs=behavior_probs,
                labels=raw["labels"],
            )
        )
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError("data.id", f"episode {number}: {name}: {error}") from None


# --- spaces


def flat_space(space: gym.Space) -> gym.spaces.Box:
    """Return the space of flattened elements, a Box [D] float32.

    Raises:
        ConfigError: The elements have no fixed size.
    """
    from gymnasium import spaces

    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        raise ConfigError("data.id", f"{space} has elements of no fixed size")
    with np.errstate(over="ignore"):
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def flat_action_space(space: gym.Space) -> gym.Space:
    """Return a Discrete space unchanged and a Box as Box [A] float32.

    Raises:
        ConfigError: The space is neither.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return space
    if isinstance(space, spaces.Box):
        return flat_space(space)
    raise ConfigError("data.id", f"actions must be in a Box or Discrete space, not in {space}")


def flatten_steps(space: gym.Space, values: Any) -> np.ndarray:
    """Flatten n elements of a space at once, equal to `gymnasium.spaces.flatten` of each.

    Args:
        space: Of the elements.
        values: Array [n, ...], nested like a Dict or Tuple space.

    Returns:
        [n, D] float32.

    Raises:
        ValueError: The values do not fit the space.
        TypeError: The values do not fit the space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        return np.concatenate([flatten_steps(part, values[key]) for key, part in named], axis=1)
    if isinstance(space, spaces.Text):
        return np.array([spaces.flatten(space, text) for text in values], dtype=np.float32)
    array = np.atleast_1d(values)
    flat = array.reshape(len(array), int(np.prod(array.shape[1:])))
    if isinstance(space, spaces.Discrete):
        return _one_hot(flat - space.start, np.array([space.n]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(flat - space.start.ravel(), space.nvec.ravel())
    with np.errstate(over="ignore"):
        return flat.astype(np.float32)


def _one_hot(choices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Encode choices [n, m], counted from 0, as [n, sum of sizes] float32."""
    if ((choices < 0) | (choices >= sizes)).any():
        raise ValueError("a choice outside its space")
    hot = np.zeros((len(choices), int(sizes.sum())), dtype=np.float32)
    columns = choices + np.cumsum(sizes) - sizes
    np.put_along_axis(hot, columns.astype(np.int64), 1.0, axis=1)
    return hot


def _as_stored(episode: Episode) -> Episode:
    """Cast an episode to the stored dtypes.

    Values that overflow become infinite; `check_episode` rejects them later.
    """
    actions = np.asarray(episode.actions)
    choices = np.issubdtype(actions.dtype, np.integer) and actions.ndim == 1
    probs = episode.behavior_probs
    with np.errstate(over="ignore"):
        return Episode(
            observations=np.asarray(episode.observations, dtype=np.float32),
            actions=actions.astype(np.int64 if choices else np.float32, copy=False),
            rewards=np.asarray(episode.rewards, dtype=np.float32),
            terminated=np.asarray(episode.terminated, dtype=bool),
            truncated=np.asarray(episode.truncated, dtype=bool),
            user=episode.user,
            behavior_probs=None if probs is None else np.asarray(probs, dtype=np.float32),
            labels=episode.labels,
        )


# --- writing


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
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = check_id(dataset_id)
    if card.get("users") not in (SIMULATED, REAL):
        said = card.get("users")
        raise ValueError(f"card['users'] must be {SIMULATED!r} or {REAL!r}, got {said!r}")
    folder = datasets_root() / dataset_id
    if folder.exists():
        raise ConfigError(
            "data.id", f"{dataset_id} exists already at {folder}; choose another name or version"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    spaces = flat_space(observation_space), flat_action_space(action_space)
    # Hidden, so that neither Minari nor `local_ids` lists it.
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
        inside = Path(temporary) / "dataset"
        storage = _new_storage(dataset_id, inside / "data", env_id, spaces, card)
        users: dict[int, str] = {}
        storage.update_episodes(_buffers(episodes, users, *spaces))
        count = storage.total_episodes
        if not count:
            raise ConfigError("data.id", "there are no episodes")
        if users and len(users) < count:
            problem = f"{len(users)} of {count} episodes name their user: all or none"
            raise ConfigError("data.id", problem)
        if users:
            storage.update_episode_metadata(({OURS: name} for name in users.values()), users)
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        os.rename(inside, folder)
    return folder


def _new_storage(
    dataset_id: str,
    folder: Path,
    env_id: str | None,
    spaces: tuple[gym.Space, gym.Space],
    card: dict[str, Any],
) -> Any:
    """Return Minari's storage without episodes, with the metadata of `write_minari`."""
    import gymnasium as gym
    import minari
    from minari.dataset.minari_storage import MinariStorage

    spec = None
    with contextlib.suppress(gym.error.Error, ImportError):  # not registered
        spec = gym.spec(env_id) if env_id is not None else None
    seen, acted = spaces
    folder.mkdir(parents=True)
    storage = MinariStorage.new(folder, seen, acted, env_spec=spec, data_format="hdf5")
    storage.update_metadata(
        {
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            **{key: card[key] for key in _STANDARD if card.get(key) is not None},
            METADATA_KEY: {"env_id": env_id, "card": card},
        }
    )
    return storage


def _buffers(
    episodes: Iterable[Episode],
    users: dict[int, str],
    observation_space: gym.Space,
    action_space: gym.Space,
) -> Iterator[Any]:
    """Yield checked episodes as Minari's EpisodeBuffers; fills `users` by episode number."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    expected = _shapes(observation_space, action_space)
    for number, given in enumerate(episodes):
        episode = _as_stored(given)
        check_episode(episode, number, *expected)
        infos = {}  # of the reset, then of every step; Minari cannot print an episode without it
        if episode.behavior_probs is not None:
            infos[PROBS_KEY] = np.append(np.float32(np.nan), episode.behavior_probs)
        if episode.user is not None:
            users[number] = episode.user
        yield EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos=infos,
        )
