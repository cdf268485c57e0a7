"""One worker of a round: it has its own environments and sends back sums, never a user's data."""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from privrl_bench.config.plugins import Additions, restore
from privrl_bench.config.schema import RunConfig
from privrl_bench.experiment.builder import build
from privrl_bench.experiment.selection import make_collector
from privrl_bench.experiment.shard_work import ShardWork
from privrl_bench.kernels.machine import one_thread
from privrl_bench.kernels.signals import leave_signals_to_parent


class ShardWorker:
    """The run's algorithm and collector again, without its ledgers; it draws no noise.

    Args:
        configs: as they were composed, of each replica.
        rounds: of the run.
        users: of a shard.
        outside: what plugins have added to the parent process.
    """

    def __init__(self, configs: list[RunConfig], rounds: int, users: int, outside: Additions):
        restore(outside)
        one_thread()
        components = build(configs, [None] * len(configs), rounds)
        self._work = ShardWork(components, make_collector(components, users))

    def answer(self, task: bytes) -> bytes:
        """`run` as packed (result, error); an empty task has an empty result."""
        try:
            return packed((self.run(task) if task else b"", None))
        except Exception as error:
            return packed((b"", plain(error)))

    def run(self, task: bytes) -> bytes:
        """Some slots of a round: packed (`State`, `Cohort`) -> packed (`RowSum`, `RoundStats`)."""
        components = self._work.components
        state, cohort = pickle.loads(task)
        algo, rows = components.algo, components.gate.empty_sum()
        self._work.collector.scaler.use(algo.scaling(state))
        stats = self._work.run(state, algo.actor(state), cohort, rows.add)
        return packed((rows, stats))


class _Pickler(pickle.Pickler):
    """Tensors as arrays: torch's own form takes ten times as long for small ones."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def packed(value: Any) -> bytes:
    """A value as bytes for `pickle.loads`."""
    into = io.BytesIO()
    _Pickler(into, protocol=5).dump(value)
    return into.getvalue()


def serve(pipe: Connection, arguments: tuple[Any, ...]) -> None:
    """The main loop of a process: the answer to an empty task when it is ready, then one for each task.

    Args:
        pipe: to the parent.
        arguments: of `ShardWorker`.
    """
    leave_signals_to_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent is gone
        try:
            worker = ShardWorker(*arguments)
        except Exception as error:
            pipe.send_bytes(packed((b"", plain(error))))
            return
        pipe.send_bytes(worker.answer(b""))
        while True:
            pipe.send_bytes(worker.answer(pipe.recv_bytes()))


def plain(error: Exception) -> Exception:
    """An error that can be sent, without its traceback, which may hold users' data."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return (
        copy if type(copy) is type(error) and str(copy) == str(error) else RuntimeError(str(error))
    )


def _end_with_parent() -> None:
    """End this process when its parent is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)
