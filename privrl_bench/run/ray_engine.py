"""Workers of a round in Ray actors, on this machine or on a cluster (`hardware=ray`).

Ray restarts nothing by itself: a task of an actor that has died goes to another worker, as with processes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from privrl_bench.kernels.pipe_worker import WorkerDied, packed, unpacked
from privrl_bench.run.shard_worker import ShardWorker


class RayWorker:
    """An actor.

    Args:
        ray: the package.
        arguments: of `ShardWorker`.
    """

    def __init__(self, ray: Any, arguments: tuple[Any, ...]):
        self._ray = ray
        kind = ray.remote(num_cpus=1)(ShardWorker)
        self.actor = kind.remote(*arguments)
        self.begin(None)

    def begin(self, task: Any) -> None:
        """See `Worker.begin`."""
        self.reference = self.actor.answer.remote(packed(task))

    def result(self) -> Any:
        """See `Worker.result`."""
        try:
            answered = self._ray.get(self.reference)
        except self._ray.exceptions.RayActorError:
            raise WorkerDied from None
        return unpacked(answered)

    def close(self) -> None:
        """See `Worker.close`."""
        self._ray.kill(self.actor)


class RayEngine:
    """Ray actors.

    Args:
        address: of the cluster; None: Ray is started on this machine.
    """

    here = False

    def __init__(self, address: str | None):
        import ray  # of the extra

        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            self._ray.init(
                address=address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    def room(self) -> int:
        """See `Engine.room`: the cores of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def make(self, arguments: tuple[Any, ...]) -> RayWorker:
        """See `Engine.make`."""
        return RayWorker(self._ray, arguments)

    def done(self, busy: Sequence[RayWorker], block: bool) -> list[RayWorker]:
        """See `Engine.done`."""
        references = [one.reference for one in busy]
        ready, _ = self._ray.wait(references, num_returns=1, timeout=None if block else 0)
        return [one for one in busy if one.reference in ready]

    def close(self) -> None:
        """Stop Ray, if it was started here."""
        if self._ours:
            self._ray.shutdown()
