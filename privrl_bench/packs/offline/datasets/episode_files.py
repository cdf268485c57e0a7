"""Episodes in .npz files, written atomically while a collection is in progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from privrl_bench.packs.offline.datasets.trajectories import Episode

_COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated")


def write_shard(path: Path, episodes: Sequence[Episode]) -> None:
    """Write at least one episode; all have behaviour probabilities, or none."""
    columns = {name: np.concatenate([getattr(e, name) for e in episodes]) for name in _COLUMNS}
    columns["lengths"] = np.array([len(e.rewards) for e in episodes])
    known = [e.behavior_probs for e in episodes if e.behavior_probs is not None]
    if known:
        columns["behavior_probs"] = np.concatenate(known)
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(file, **columns)  # type: ignore[arg-type]
    partial.replace(path)


def read_shard(path: Path) -> Iterator[Episode]:
    """Yield the episodes of a file in order."""
    with np.load(path) as content:
        columns = {name: content[name] for name in content.files}
    ends = np.cumsum(columns["lengths"])
    for k, end in enumerate(ends):
        rows = slice(end - columns["lengths"][k], end)
        yield Episode(
            columns["observations"][rows.start + k : end + k + 1],
            columns["actions"][rows],
            columns["rewards"][rows],
            columns["terminated"][rows],
            columns["truncated"][rows],
            behavior_probs=columns["behavior_probs"][rows] if "behavior_probs" in columns else None,
        )
