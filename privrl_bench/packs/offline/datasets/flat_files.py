"""Flat files of recorded episodes, written once and read memory-mapped. Axes: see `trajectories`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.trajectories import (
    Episode,
    Trajectories,
    check_episode,
    invalid_episode,
)
from privrl_bench.packs.offline.datasets.user_keys import Labels


class _Column:
    """A .npy file of rows [*tail] that grows as rows are added."""

    def __init__(self, path: Path, dtype: str, tail: tuple[int, ...] = ()):
        self.dtype, self.tail, self.rows = np.dtype(dtype), tail, 0
        self.file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        # NumPy pads the header, so its size does not depend on the number of rows.
        shape = (self.rows, *self.tail)
        content = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, content)

    def add(self, rows: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(rows, dtype=self.dtype).data)
        self.rows += len(rows)

    def close(self) -> None:
        self.file.seek(0)
        self._write_header()
        self.file.close()


def save_flat(
    folder: Path,
    episodes: Iterable[Episode],
    env_id: str | None = None,
    card: dict[str, Any] | None = None,
) -> None:
    """Check episodes and write them to a new folder atomically, with one episode in memory at a time.

    Args:
        folder: The new folder.
        episodes: At least one.
        env_id: Environment of the episodes, if known.
        card: JSON-serialisable information about the data.

    Raises:
        FileExistsError: The folder exists.
        ConfigError: On data.id: an episode is invalid (see `check_episode`), or there are none.
    """
    if folder.exists():
        raise FileExistsError(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        inside = Path(temporary) / "flat"
        inside.mkdir()
        starts, users, labels = _write_columns(inside, episodes)
        np.save(inside / "starts.npy", starts)
        np.save(inside / "users.npy", users)
        (inside / "labels.json").write_text(json.dumps(labels))
        (inside / "card.json").write_text(json.dumps({"env_id": env_id, "card": card or {}}))
        try:
            os.rename(inside, folder)
        except OSError:
            if folder.exists():  # another process was first
                raise FileExistsError(folder) from None
            raise


def _write_columns(
    folder: Path, episodes: Iterable[Episode]
) -> tuple[np.ndarray, np.ndarray, Labels]:
    """Write the large arrays; return `starts` [K + 1], `users` [K] and `labels` of K values each."""
    starts, users = [0], []
    labels: Labels = {}
    names: dict[str, int] = {}
    count = 0
    columns: dict[str, _Column] = {}
    obs_dim: int | None = None
    action_shape: tuple[int, ...] | None = None
    try:
        for number, episode in enumerate(episodes):
            check_episode(episode, number, obs_dim, action_shape)
            if not columns:
                obs_dim = episode.observations.shape[1]
                action_shape = episode.actions.shape[1:]
                columns = _columns(
                    folder, obs_dim, action_shape, episode.behavior_probs is not None
                )
            if (episode.behavior_probs is not None) != ("behavior_probs" in columns):
                has = "has no" if "behavior_probs" in columns else "has"
                raise invalid_episode(
                    number, f"{has} behavior_probs, unlike earlier ones: all or none"
                )
            for name, column in columns.items():
                column.add(getattr(episode, name))
            starts.append(starts[-1] + len(episode.rewards))
            user = count if episode.user is None else names.setdefault(episode.user, count)
            count = max(count, user + 1)
            users.append(user)
            for key, value in (episode.labels or {}).items():
                column_of = labels.setdefault(key, [])
                column_of += [None] * (number - len(column_of)) + [value]
    finally:
        for column in columns.values():
            column.close()
    if not users:
        raise ConfigError("data.id", "there are no episodes")
    for values in labels.values():
        values += [None] * (len(users) - len(values))
    return np.array(starts, dtype=np.int64), np.array(users, dtype=np.int64), labels


def _columns(
    folder: Path, obs_dim: int, action_shape: tuple[int, ...], behavior_probs: bool
) -> dict[str, _Column]:
    columns = {
        "observations": _Column(folder / "observations.npy", "<f4", (obs_dim,)),
        "actions": _Column(folder / "actions.npy", "<f4" if action_shape else "<i8", action_shape),
        "rewards": _Column(folder / "rewards.npy", "<f4"),
        "terminated": _Column(folder / "terminated.npy", "|b1"),
    }
    if behavior_probs:
        columns["behavior_probs"] = _Column(folder / "behavior_probs.npy", "<f4")
    return columns


def load_flat(folder: Path) -> Trajectories:
    """Open the files of `save_flat`; the large arrays are memory-mapped, read-only."""
    known = json.loads((folder / "card.json").read_text())

    def column(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    return Trajectories(
        observations=column("observations"),
        actions=column("actions"),
        rewards=column("rewards"),
        terminated=column("terminated"),
        starts=np.load(folder / "starts.npy"),
        users=np.load(folder / "users.npy"),
        env_id=known["env_id"],
        card=known["card"],
        labels=json.loads((folder / "labels.json").read_text()),
        behavior_probs=column("behavior_probs")
        if (folder / "behavior_probs.npy").exists()
        else None,
    )
