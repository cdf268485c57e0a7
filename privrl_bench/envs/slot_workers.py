"""Slots distributed over processes (`hardware.env_workers`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.remote import Remote
from privrl_bench.envs.slots import Slots, StepResult, Users


def _share(config: EnvConfig, count: int) -> Slots:
    """The slots of one process."""
    from privrl_bench.envs.registry import make_slots

    return make_slots(config, count)


class WorkerSlots:
    """`Slots` over worker processes: slot i is in process i % workers.

    Args:
        config: The environment.
        count: Number of slots.
        workers: Number of processes.
    """

    def __init__(self, config: EnvConfig, count: int, workers: int):
        self.count = count
        self._workers = min(workers, count)
        shares = [len(range(w, count, self._workers)) for w in range(self._workers)]
        self._remotes = [Remote(_share, config, share) for share in shares]
        for remote in self._remotes:
            remote.wait_made()

    def _spread(self, name: str, indices: np.ndarray, *payloads: Any) -> list[tuple[Any, Any]]:
        """Send each worker its part of every list or array; return [(rows, result)]."""
        asked = []
        for w, remote in enumerate(self._remotes):
            rows = np.flatnonzero(indices % self._workers == w)
            if len(rows):
                shares = [
                    [x[i] for i in rows] if isinstance(x, list) else x[rows] for x in payloads
                ]
                remote.send(name, indices[rows] // self._workers, *shares)
                asked.append((rows, remote))
        return [(rows, remote.answer()) for rows, remote in asked]

    def reset(self, indices: np.ndarray, seeds: list[int], users: Users = None) -> np.ndarray:
        """See `Slots.reset`."""
        parts = self._spread("reset", indices, seeds, *([] if users is None else [users]))
        obs = np.empty((len(indices), parts[0][1].shape[1]))
        for rows, part in parts:
            obs[rows] = part
        return obs

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`."""
        parts = self._spread("step", indices, actions)
        k = len(indices)
        merged = StepResult(
            np.empty((k, parts[0][1].obs.shape[1])),
            np.empty(k),
            np.empty(k, dtype=bool),
            np.empty(k, dtype=bool),
        )
        for rows, part in parts:
            for whole, piece in zip(merged, part, strict=True):
                whole[rows] = piece
        return merged

    def close(self) -> None:
        """See `Slots.close`."""
        for remote in self._remotes:
            remote.close()
