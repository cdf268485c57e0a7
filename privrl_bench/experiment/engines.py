"""Where the workers of a round are: in processes of this machine, or in Ray actors on several."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any, Protocol

from privrl_bench.experiment.shard_worker import serve
from privrl_bench.kernels.machine import cores, starting_processes


class WorkerDied(Exception):
    """A worker is gone; its task can be given to another one."""


class Worker(Protocol):
    """One `ShardWorker` somewhere, with one task at a time. Making it counts as its first task."""

    def begin(self, task: bytes) -> None:
        """Give it a task. Raises WorkerDied."""
        ...

    def result(self) -> bytes:
        """Wait for the task that was begun first. Raises WorkerDied, or what the task raised."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Engine(Protocol):
    """Makes workers.

    Attributes:
        here: whether the process of the run has shards of its own, too.
    """

    here: bool

    def room(self) -> int:
        """How many workers it has room for, this process included if it has shards."""
        ...

    def make(self, arguments: tuple[Any, ...]) -> Any:
        """A new worker, which may not be ready yet. Arguments: of `ShardWorker`."""
        ...

    def done(self, busy: Sequence[Any], block: bool) -> list[Any]:
        """Those of the workers whose task is done, or who have died; `block`: at least one."""
        ...

    def close(self) -> None:
        """Free what the workers had in common."""
        ...


class ProcessWorker:
    """A process of this machine. Arguments: of `ShardWorker`."""

    def __init__(self, arguments: tuple[Any, ...]):
        context = multiprocessing.get_context("spawn")  # torch and simulators do not support fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, arguments), daemon=True)
        with starting_processes():
            self.process.start()
        theirs.close()  # otherwise the end of the process is not noticed
        # It ignores SIGTERM, with which `multiprocessing` would end it at exit.
        Finalize(self, self.process.kill, exitpriority=10)

    def begin(self, task: bytes) -> None:
        """See `Worker.begin`."""
        try:
            self.pipe.send_bytes(task)
        except OSError:
            raise WorkerDied from None

    def result(self) -> bytes:
        """See `Worker.result`."""
        try:
            found, error = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerDied from None
        if error is not None:
            raise error
        result: bytes = found
        return result

    def close(self) -> None:
        """See `Worker.close`."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class ProcessEngine:
    """Processes of this machine."""

    here = True

    def room(self) -> int:
        """See `Engine.room`: the cores that this process may use."""
        return cores()

    def make(self, arguments: tuple[Any, ...]) -> ProcessWorker:
        """See `Engine.make`."""
        return ProcessWorker(arguments)

    def done(self, busy: Sequence[ProcessWorker], block: bool) -> list[ProcessWorker]:
        """See `Engine.done`."""
        ready = wait([one.pipe for one in busy], timeout=None if block else 0)
        return [one for one in busy if one.pipe in ready]

    def close(self) -> None:
        """Nothing in common."""


def _ray(address: str | None) -> Engine:
    from privrl_bench.experiment.ray_engine import RayEngine

    return RayEngine(address)


# Value of `hardware.engine` -> from `hardware.address` to the engine.
ENGINES: dict[str, Callable[[str | None], Engine]] = {
    "processes": lambda address: ProcessEngine(),
    "ray": _ray,
}
