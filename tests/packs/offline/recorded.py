"""Generated episodes, and datasets written by Minari's own classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gymnasium as gym
import numpy as np

from privrl_bench.packs.offline.datasets.minari_files import open_dataset
from privrl_bench.packs.offline.datasets.trajectories import Episode

BOX = gym.spaces.Box(-10.0, 10.0, (3,))
TORQUE = gym.spaces.Box(-1.0, 1.0, (2,))
CHOICE = gym.spaces.Discrete(4)


def episode(
    steps: int, seed: int, user: str | None = None, discrete: bool = False, **changes: Any
) -> Episode:
    """Without behaviour probabilities; see `with_probs`."""
    rng = np.random.default_rng(seed)
    done = np.zeros(steps, dtype=bool)
    done[-1:] = True
    terminated = done & (seed % 2 == 0)
    actions = rng.integers(4, size=steps) if discrete else rng.random((steps, 2), dtype=np.float32)
    made = Episode(
        observations=rng.random((steps + 1, 3), dtype=np.float32),
        actions=actions,
        rewards=rng.random(steps, dtype=np.float32),
        terminated=terminated,
        truncated=done & ~terminated,
        user=user,
    )
    return made._replace(**changes)


def some(count: int = 5, discrete: bool = False) -> Iterator[Episode]:
    for k in range(count):
        yield episode(2 + k, k, discrete=discrete)


def with_probs(made: Episode) -> Episode:
    """The same, with behaviour probabilities in (0, 1]."""
    rng = np.random.default_rng(len(made.rewards))
    return made._replace(behavior_probs=(1 - rng.random(len(made.rewards))).astype(np.float32))


def assert_same(a: Episode, b: Episode) -> None:
    """All but the user's name, and other labels."""
    for name in Episode._fields:
        x, y = getattr(a, name), getattr(b, name)
        if name in ("user", "labels"):
            continue
        if name == "behavior_probs" and y is None:
            assert x is None
            continue
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype, name


def assert_same_episodes(a: Sequence[Episode], b: Sequence[Episode]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert_same(one, other)


def everything(name: str) -> list[Episode]:
    """The episodes of a dataset."""
    found = open_dataset(name)
    return [found.episode(k) for k in range(found.episodes)]


@contextmanager
def no_figure(path: Path, count: int) -> Iterator[list[MagicMock]]:
    """For `recording.figure`: drawing takes a second."""
    path.touch()
    yield [MagicMock()]


def by_minari(
    root: Path,
    dataset_id: str,
    buffers: list[dict[str, Any]],
    observation_space: gym.Space = BOX,
    action_space: gym.Space = TORQUE,
    data_format: str = "hdf5",
) -> Path:
    """Write a dataset without checks; returns its folder."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    folder = root / dataset_id
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data", observation_space, action_space, data_format=data_format
    )
    storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari.__version__})
    storage.update_episodes(EpisodeBuffer(**fields) for fields in buffers)
    return folder


def fields(made: Episode, **changes: Any) -> dict[str, Any]:
    """Minari's names of an episode's arrays."""
    return {
        "observations": made.observations,
        "actions": made.actions,
        "rewards": made.rewards,
        "terminations": made.terminated,
        "truncations": made.truncated,
        **changes,
    }
