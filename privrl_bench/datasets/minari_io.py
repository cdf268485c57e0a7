"""Minari datasets: write episodes to a local one, open a local one as flat memory-mapped arrays.

Only local files are touched; `minari download` fetches. Minari, Gymnasium and h5py are imported where used, so
opening a dataset that was opened before needs none of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.datasets.trajectories import (
    Episode,
    Trajectories,
    check_episode,
    load_flat,
    save_flat,
)
from privrl_bench.datasets.user_keys import AUTO, MINARIS, OURS, labels_of, users_of
from privrl_bench.errors import ConfigError, suggest

if TYPE_CHECKING:
    import gymnasium as gym
    import h5py

_OURS = "privrl_bench"  # our key in a dataset's metadata
_STANDARD = ("algorithm_name", "description", "code_permalink", "requirements")
_LABELS = "labels"  # of a read episode
_CHANCES = (
    "behaviour_probabilities"  # key in `infos`, [T + 1]: those of a reset, of no action, are NaN
)
_REOPEN = 256  # episodes; HDF5 remembers some 50 KB for each that it saw, until the file is closed
_FORMAT = 2  # of the cache; another one makes old caches unused


def local_ids() -> list[str]:
    """Ids of the datasets on this machine, sorted."""
    root, found = _root(), []
    for folder, inside, _ in os.walk(root):
        if (Path(folder) / "data" / "metadata.json").exists():
            found.append(Path(folder).relative_to(root).as_posix())
            inside.clear()
        else:
            inside[:] = [name for name in inside if not name.startswith(".")]
    return sorted(found)


def _root() -> Path:
    """Where Minari keeps datasets."""
    named = os.environ.get("MINARI_DATASETS_PATH")
    return Path(named) if named is not None else Path.home() / ".minari" / "datasets"


# --- write


def write_minari(
    dataset_id: str,
    episodes: Iterable[Episode],
    env_id: str | None,
    observation_space: gym.Space,
    action_space: gym.Space,
    card: dict[str, Any],
) -> Path:
    """Write a local dataset, one episode in memory at a time; return its folder.

    It appears whole or not at all. Observations [T + 1, D] and actions are written flat, in the flattened
    spaces. `card` is anything JSON can hold; its algorithm_name, description, code_permalink (text) and
    requirements (list) become Minari's own fields too. Who an episode belongs to is in its metadata; the
    chances of its actions are under infos/behaviour_probabilities.

    Raises: ConfigError on data.id for an id that is malformed or taken, for actions neither in a Box nor
    Discrete, for a bad episode (see `check_episode`) or none, or where only some episodes name their user.
    """
    import minari
    from minari.dataset.minari_storage import MinariStorage

    namespace = check_id(dataset_id)
    folder = _root() / dataset_id
    if folder.exists():
        raise ConfigError(
            "data.id", f"{dataset_id} exists already at {folder}; choose another name or version"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Hidden, so that Minari and `local_ids` do not see it.
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
        inside = Path(temporary) / "dataset"
        inside.mkdir()
        storage = MinariStorage.new(
            inside / "data",
            observation_space=_flat_space(observation_space),
            action_space=_flat_action_space(action_space),
            env_spec=_spec(env_id),
            data_format="hdf5",
        )
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": minari.__version__,
                **{key: card[key] for key in _STANDARD if card.get(key) is not None},
                _OURS: {"env_id": env_id, "card": card},
            }
        )
        users: dict[int, str] = {}
        storage.update_episodes(
            _buffers(episodes, users, storage.observation_space, storage.action_space)
        )
        if not storage.total_episodes:
            raise ConfigError("data.id", "there are no episodes")
        if users:
            if len(users) < storage.total_episodes:
                raise ConfigError(
                    "data.id",
                    f"{len(users)} of {storage.total_episodes} episodes name their user: all or none",
                )
            storage.update_episode_metadata(({OURS: name} for name in users.values()), users)
        _create_namespace(namespace)
        os.rename(inside, folder)
    return folder


def check_id(dataset_id: str) -> str | None:
    """Namespace of a well-formed id. Raises: ConfigError."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        return parse_dataset_id(dataset_id)[0]
    except (ValueError, TypeError):  # Minari's TypeError: no version
        raise ConfigError(
            "data.id",
            "must look like name-v0 or group/name-v0, of letters, digits, _ and -, a group of at least two, "
            f"got {dataset_id!r}",
        ) from None


def _create_namespace(namespace: str | None) -> None:
    from minari.namespace import create_namespace, list_local_namespaces

    if namespace is not None and namespace not in list_local_namespaces():
        create_namespace(namespace)


def _spec(env_id: str | None) -> Any:
    """Gymnasium's EnvSpec, or None for an environment that is not registered there."""
    import gymnasium as gym

    if env_id is None:
        return None
    try:
        return gym.spec(env_id)
    except (gym.error.Error, ImportError):
        return None


def _flat_space(space: gym.Space) -> gym.spaces.Box:
    """The space of `flatten`ed elements: a Box [D] float32. Raises: ConfigError."""
    from gymnasium import spaces

    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box):
        raise ConfigError("data.id", f"{space} has elements of no fixed size")
    with np.errstate(over="ignore"):
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def _flat_action_space(space: gym.Space) -> gym.Space:
    """A Discrete space itself, a Box as Box [A] float32. Raises: ConfigError."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return space
    if isinstance(space, spaces.Box):
        return _flat_space(space)
    raise ConfigError("data.id", f"actions must be in a Box or Discrete space, not in {space}")


def _buffers(
    episodes: Iterable[Episode],
    users: dict[int, str],
    observation_space: gym.Space,
    action_space: gym.Space,
) -> Iterator[Any]:
    """Checked episodes as Minari's EpisodeBuffers; notes the named users by episode number."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    (obs_dim,) = observation_space.shape or ()
    for number, given in enumerate(episodes):
        episode = _as_stored(given)
        check_episode(episode, number, obs_dim, action_space.shape)
        _check_choices(episode.actions, number, action_space)
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
    """What Minari keeps of every reset and step; it cannot print an episode without the dictionary."""
    if behavior_probs is None:
        return {}
    return {_CHANCES: np.concatenate([np.array([np.nan], np.float32), behavior_probs])}


def _as_stored(episode: Episode) -> Episode:
    """The dtypes that are promised; what does not fit becomes infinite, which is found later."""
    actions = np.asarray(episode.actions)
    whole = np.issubdtype(actions.dtype, np.integer) and actions.ndim == 1
    with np.errstate(over="ignore"):
        return Episode(
            observations=np.asarray(episode.observations, dtype=np.float32),
            actions=actions.astype(np.int64 if whole else np.float32, copy=False),
            rewards=np.asarray(episode.rewards, dtype=np.float32),
            terminated=np.asarray(episode.terminated, dtype=bool),
            truncated=np.asarray(episode.truncated, dtype=bool),
            user=episode.user,
            behavior_probs=None
            if episode.behavior_probs is None
            else np.asarray(episode.behavior_probs, dtype=np.float32),
            labels=episode.labels,
        )


def _check_choices(actions: np.ndarray, number: int, space: gym.Space) -> None:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
        if actions.min() < low or actions.max() > high:
            raise ConfigError("data.id", f"episode {number}: actions outside {low} to {high}")


# --- read


def open_dataset(dataset_id: str, user_key: str | None = AUTO) -> Trajectories:
    """Open a local dataset; the first time it is read, checked and copied to flat files beside it.

    Observations are flat [N + K, D] as by `gymnasium.spaces.flatten`, actions flat [N, A], Discrete ones [N]
    as they are; chances where all episodes have them. The card is that of `write_minari`, and under `minari`
    the dataset's metadata. `user_key` says which key of the episodes' metadata names their user (see
    `users_of`).

    Raises: ConfigError on data.user_key (see `users_of`), and on data.id for a dataset that is not there or
    cannot be read, for actions neither in a Box nor Discrete, and for a bad episode (see `check_episode`).
    """
    folder = _root() / dataset_id
    if not (folder / "data" / "metadata.json").exists():
        check_id(dataset_id)
        raise ConfigError(
            "data.id",
            f"no dataset {dataset_id!r} in {_root()}{suggest(dataset_id, local_ids())}; "
            f"`minari download {dataset_id}` fetches a public one",
        )
    flat = load_flat(_flat_copy(dataset_id, folder))
    users = users_of(flat.labels, flat.episodes, user_key, dataset_id)
    return replace(flat, users=users.numbers, user_key=users.key, repeated=users.repeated)


def _flat_copy(dataset_id: str, folder: Path) -> Path:
    """The flat files of a dataset, which are made if they are not there. Raises: ConfigError."""
    name = f"flat2-{_fingerprint(dataset_id, folder / 'data')}"
    beside, elsewhere = folder / name, _cache_home() / name
    for cache in (beside, elsewhere):
        if cache.exists():
            return cache
    cache = beside if os.access(folder, os.W_OK) else elsewhere
    env_id, card = _about(dataset_id, folder / "data")
    with contextlib.suppress(FileExistsError):  # when another process was faster
        save_flat(cache, _episodes(dataset_id), env_id, card)
    for old in folder.glob("flat*-*"):
        if old != cache:
            shutil.rmtree(old, ignore_errors=True)
    return cache


def _cache_home() -> Path:
    """Where caches go whose dataset's folder cannot be written."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privrl_bench"


def _fingerprint(dataset_id: str, data: Path) -> str:
    """Changes with the metadata and with name, size or time of any file of the dataset."""
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
    """Environment and card. Raises: ConfigError."""
    try:
        metadata = json.loads((data / "metadata.json").read_text())
        ours = metadata.pop(_OURS, {})
        spec = json.loads(metadata.get("env_spec") or "{}")
        return ours.get("env_id") or spec.get("id"), {**ours.get("card", {}), "minari": metadata}
    except (ValueError, AttributeError) as error:
        raise _unreadable(dataset_id, error) from None


def _unreadable(dataset_id: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConfigError("data.id", f"{dataset_id} cannot be read: {reason}")


def _episodes(dataset_id: str) -> Iterator[Episode]:
    """The dataset's episodes, checked. Raises: ConfigError."""
    try:
        import minari

        storage = minari.load_dataset(dataset_id).storage
    except Exception as error:  # bad metadata, an unknown version, a package that is not there
        raise _unreadable(dataset_id, error) from error
    seen, acted = storage.observation_space, storage.action_space
    (obs_dim,) = _flat_space(seen).shape
    action_shape = _flat_action_space(acted).shape
    direct = storage.FORMAT == "hdf5" and _is_plain(seen) and _is_plain(acted)
    raws = _from_hdf5(storage) if direct else _from_minari(storage)
    number = 0
    while True:
        try:
            raw = next(raws, None)
        except KeyError as error:
            raise ConfigError("data.id", f"episode {number}: missing: {error.args[0]}") from None
        except OSError as error:
            raise _unreadable(dataset_id, error) from None
        if raw is None:
            return
        episode = _episode(raw, number, seen, acted)
        check_episode(episode, number, obs_dim, action_shape)
        _check_choices(episode.actions, number, acted)
        yield episode
        number += 1


def _from_minari(storage: Any) -> Iterator[dict[str, Any]]:
    """Fields of each episode, in any of Minari's formats. Raises: KeyError."""
    numbers = range(storage.total_episodes)
    metadata = storage.get_episode_metadata(numbers)
    for fields, known in zip(storage.get_episodes(numbers), metadata, strict=True):
        behavior_probs = (fields.get("infos") or {}).get(_CHANCES)
        yield {**fields, _LABELS: labels_of(known), _CHANCES: behavior_probs}


def _from_hdf5(storage: Any) -> Iterator[dict[str, Any]]:
    """What `_from_minari` yields, some three times as fast. Raises: KeyError, OSError."""
    import h5py

    total = storage.total_episodes
    for first in range(0, total, _REOPEN):
        with h5py.File(storage.data_path / "main_data.hdf5", "r") as file:
            for number in range(first, min(first + _REOPEN, total)):
                yield _fields(file, f"episode_{number}", storage)


def _fields(file: h5py.File, place: str, storage: Any) -> dict[str, Any]:
    """Fields of the episode in group `place`. Raises: KeyError, OSError."""
    fields = {
        "observations": _stored(file, f"{place}/observations", storage.observation_space),
        "actions": _stored(file, f"{place}/actions", storage.action_space),
        _CHANCES: None,
    }
    if f"{place}/infos/{_CHANCES}" in file:
        fields[_CHANCES] = _stored(file, f"{place}/infos/{_CHANCES}", None)
    for name in ("rewards", "terminations", "truncations"):
        fields[name] = _stored(file, f"{place}/{name}", None)
    attributes = file[place].attrs
    own = [key for key in attributes if key.split("/")[0] not in MINARIS]
    fields[_LABELS] = labels_of({key: attributes[key] for key in own})
    return fields


def _stored(file: h5py.File, path: str, space: gym.Space | None) -> Any:
    """Arrays under `path`, nested as `space` is."""
    import h5py
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {key: _stored(file, f"{path}/{key}", part) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stored(file, f"{path}/_index_{i}", part) for i, part in enumerate(space))
    try:
        data = h5py.h5d.open(file.id, path.encode())
    except KeyError:
        raise KeyError(path.split("/", 1)[1]) from None
    found = np.empty(data.shape, dtype=data.dtype)
    data.read(h5py.h5s.ALL, h5py.h5s.ALL, found)
    return found


def _is_plain(space: gym.Space) -> bool:
    """Whether Minari keeps elements in HDF5 as they are: texts and images it encodes."""
    from gymnasium import spaces
    from minari.dataset.minari_storage import is_image_space

    if isinstance(space, spaces.Dict):
        return all(_is_plain(part) for part in space.values())
    if isinstance(space, spaces.Tuple):
        return all(_is_plain(part) for part in space)
    return not isinstance(space, spaces.Text) and not is_image_space(space)


def _episode(
    raw: dict[str, Any], number: int, observation_space: gym.Space, action_space: gym.Space
) -> Episode:
    """Flatten and cast. Raises: ConfigError for what are no numbers, or do not fit the spaces."""
    from gymnasium import spaces

    name = ""
    try:
        name = "observations"
        observations = flatten_steps(observation_space, raw[name])
        name = "actions"
        actions = np.asarray(raw[name])
        if not isinstance(action_space, spaces.Discrete):
            actions = flatten_steps(action_space, actions)
        name, behavior_probs = f"infos/{_CHANCES}", None
        if raw[_CHANCES] is not None:
            behavior_probs = np.asarray(raw[_CHANCES], dtype=np.float32)[1:]
        name = "rewards, terminations or truncations"
        return _as_stored(
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


def flatten_steps(space: gym.Space, values: Any) -> np.ndarray:
    """[n, D] float32: `gymnasium.spaces.flatten` of the n elements of `space` in `values`, all at once.

    `values` is an array [n, ...], nested like a Dict or Tuple space. Raises: ValueError, TypeError.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [flatten_steps(part, values[key]) for key, part in space.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [flatten_steps(part, values[i]) for i, part in enumerate(space)]
        return np.concatenate(parts, axis=1)
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
    """[n, sum of sizes] float32 from choices [n, m] counted from 0. Raises: ValueError."""
    if ((choices < 0) | (choices >= sizes)).any():
        raise ValueError("a choice outside its space")
    hot = np.zeros((len(choices), int(sizes.sum())), dtype=np.float32)
    places = choices + np.cumsum(sizes) - sizes
    np.put_along_axis(hot, places.astype(np.int64), 1.0, axis=1)
    return hot
