"""Where the workers of a round are: in processes of this machine, or in Ray actors on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any, Protocol

from privrl_bench.kernels.machine import cores
from privrl_bench.kernels.pipe_worker import PipeWorker
from privrl_bench.run.shard_worker import ShardWorker


class Worker(Protocol):
    """One `ShardWorker` somewhere, with one task at a time: see `PipeWorker`."""

    def begin(self, task: Any) -> None:
        """Give it a task; see `ShardWorker.run`."""
        ...

    def result(self) -> Any:
        """Wait for the task. Raises WorkerDied, or what the task raised."""
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
        """A new worker with the task None, which is done when it is ready. Arguments: of `ShardWorker`."""
        ...

    def done(self, busy: Sequence[Any], block: bool) -> list[Any]:
        """Those of the workers whose task is done, or who have died; `block`: at least one."""
        ...

    def close(self) -> None:
        """Free what the workers had in common."""
        ...


class ProcessEngine:
    """Processes of this machine."""

    here = True

    def room(self) -> int:
        """See `Engine.room`: the cores that this process may use."""
        return cores()

    def make(self, arguments: tuple[Any, ...]) -> PipeWorker:
        """See `Engine.make`."""
        worker = PipeWorker(ShardWorker, *arguments)
        worker.begin(None)
        return worker

    def done(self, busy: Sequence[PipeWorker], block: bool) -> list[PipeWorker]:
        """See `Engine.done`."""
        ready = wait([one.pipe for one in busy], timeout=None if block else 0)
        return [one for one in busy if one.pipe in ready]

    def close(self) -> None:
        """Nothing in common."""


def _ray(address: str | None) -> Engine:
    from privrl_bench.run.ray_engine import RayEngine

    return RayEngine(address)


# Value of `hardware.engine` -> from `hardware.address` to the engine.
ENGINES: dict[str, Callable[[str | None], Engine]] = {
    "processes": lambda address: ProcessEngine(),
    "ray": _ray,
}
