"""Slots spread over several processes (`hardware.env_workers`)."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from privrl_bench.envs.slots import StepResult
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.schema import EnvConfig

_DIED = "an environment worker process died"


def _serve(pipe: Connection, config: EnvConfig, count: int) -> None:
    """Worker loop: answers (name, arguments) with (result, error message)."""
    import signal

    # The parent decides when to stop; a Ctrl-C must let it finish its round.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from privrl_bench.envs.registry import make_slots

    slots = None
    try:
        slots = make_slots(config, count, workers=0)
        pipe.send((None, ""))
        while True:
            name, arguments = pipe.recv()
            if name == "close":
                break
            try:
                pipe.send((getattr(slots, name)(*arguments), ""))
            except EnvironmentFailure as error:
                pipe.send((None, str(error)))
    except EOFError:
        pass  # the parent is gone
    finally:
        if slots is not None:
            slots.close()


def _hang_up(pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()


class WorkerSlots:
    """Slot i lives in process i % workers; results come back in the caller's order.

    Args:
        config: the environment.
        count: number of slots.
        workers: number of processes.
    """

    def __init__(self, config: EnvConfig, count: int, workers: int):
        self.count = count
        context = mp.get_context("spawn")
        workers = min(workers, count)
        self._workers = workers
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for w in range(workers):
            here, there = context.Pipe()
            share = len(range(w, count, workers))
            process = context.Process(target=_serve, args=(there, config, share), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        # Workers end when their pipe does. At exit that must come before they are waited for.
        Finalize(self, _hang_up, args=(self._pipes,), exitpriority=10)
        for pipe in self._pipes:
            self._answer(pipe)

    @staticmethod
    def _answer(pipe: Connection) -> Any:
        try:
            result, error = pipe.recv()
        except (EOFError, OSError):
            raise EnvironmentFailure(_DIED) from None
        if error:
            raise EnvironmentFailure(error)
        return result

    def _spread(self, name: str, indices: np.ndarray, payload: Any) -> list[tuple[Any, Any]]:
        """Send each worker its share, then collect: [(rows, result)]."""
        asked = []
        for w, pipe in enumerate(self._pipes):
            rows = np.flatnonzero(indices % self._workers == w)
            if len(rows):
                share = [payload[i] for i in rows] if isinstance(payload, list) else payload[rows]
                try:
                    pipe.send((name, (indices[rows] // self._workers, share)))
                except OSError:
                    raise EnvironmentFailure(_DIED) from None
                asked.append((rows, pipe))
        return [(rows, self._answer(pipe)) for rows, pipe in asked]

    def reset(self, indices: np.ndarray, seeds: list[int]) -> np.ndarray:
        """See `Slots.reset`."""
        parts = self._spread("reset", indices, seeds)
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
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            try:
                pipe.send(("close", ()))
                pipe.close()
            except OSError:
                pass  # the worker is gone already
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
