"""A worker in a new process: the shards of a round, evaluations, and the groups of a sweep.

A worker makes an object, sends it one task at a time, and receives results or errors. Nothing heavy is imported
here: the new process imports what its object needs.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, Protocol

from privrl_bench.kernels.machine import starting_processes
from privrl_bench.kernels.signals import leave_signals_to_parent, take_signals_from_parent

_CLOSING_S = 5.0  # that an object may take to close, e.g. its simulators
_parent: Connection | None = None  # in a worker: the pipe to its parent
_telling = threading.Lock()


class WorkerDied(Exception):
    """A worker is gone, and the result of its task with it."""


class _Told(NamedTuple):
    """What a task tells before its result."""

    value: Any


class Work(Protocol):
    """The object of a worker."""

    def run(self, task: Any) -> Any:
        """Return the result of a task; both can be pickled."""
        ...

    def close(self) -> None:
        """Called before the process ends, unless it is killed."""
        ...


class PipeWorker:
    """An object in a new process, which is made when the first task arrives.

    The process starts without importing the program that runs (see `starting_processes`). It ends when its
    parent ends, however that happens.

    Args:
        make: returns the object; can be pickled.
        *arguments: of `make`.
        own_group: the process handles signals, in a process group of its own, which Ctrl-C in a terminal does
            not reach: the parent passes signals on. For objects that train runs, which stop after a round.
            Otherwise it ignores signals, and the parent decides when it ends.

    Attributes:
        pipe: readable when there is a result, or when the process has died.
        process: the process.
    """

    def __init__(self, make: Callable[..., Work], *arguments: Any, own_group: bool = False):
        context = multiprocessing.get_context("spawn")  # torch and simulators do not support fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, arguments, own_group))
        with starting_processes():
            self.process.start()
        theirs.close()  # otherwise the end of the process is not noticed
        self._own_group, self._busy = own_group, False
        # At exit, before `multiprocessing` waits for the process.
        self._kill = Finalize(self, self.process.kill, exitpriority=10)

    def begin(self, task: Any) -> None:
        """Send a task. `result` raises the errors: of making the object, of the task, or of a dead process."""
        sent = packed(task)
        self._busy = True
        with suppress(OSError):
            self.pipe.send_bytes(sent)

    def ready(self) -> bool:
        """Whether `result` would return or raise without waiting."""
        return self.pipe.poll()

    def result(self) -> Any:
        """Wait for the task, or for the next value that it tells before (see `tell`).

        Raises:
            WorkerDied: the process has died.
            Exception: what the task raised, without its traceback.
        """
        try:
            answered = self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise WorkerDied from None
        self._busy = False
        result = unpacked(answered)
        if isinstance(result, _Told):
            self._busy = True
            return result.value
        return result

    def close(self) -> None:
        """End the process, after its object is closed. An unfinished task is stopped by SIGTERM or killed."""
        if self.pipe.closed:
            return
        unfinished = self._busy and not self.ready()
        self.pipe.close()
        if self._busy and self._own_group:
            self.process.terminate()
            self.process.join()
        elif not unfinished:
            self.process.join(_CLOSING_S)
        self._kill()
        self.process.join()


def tell(value: Any) -> None:
    """In a worker: send a value to the parent before the result of the task."""
    assert _parent is not None
    with _telling, suppress(OSError):  # without a parent there is nobody to tell
        _parent.send_bytes(packed((_Told(value), None)))


# --- what is sent


class _Pickler(pickle.Pickler):
    """Tensors as arrays: torch's own form takes ten times as long for small ones."""

    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            # Raised on a GPU, with a gradient, or of a type of torch's own.
            with suppress(TypeError, RuntimeError):
                return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def packed(value: Any) -> bytes:
    """A value as bytes."""
    into = io.BytesIO()
    _Pickler(into, protocol=5).dump(value)
    return into.getvalue()


def answer(run: Callable[[Any], Any], task: bytes) -> bytes:
    """The packed result or error of a packed task."""
    try:
        return packed((run(pickle.loads(task)), None))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # environments may raise any
        return packed((None, _plain(error)))


def unpacked(answered: bytes) -> Any:
    """The result in an `answer`. Raises its error."""
    result, error = pickle.loads(answered)
    if error is not None:
        raise error
    return result


def _plain(error: BaseException) -> Exception:
    """An error that can be sent, without its traceback, which may contain users' data."""
    with suppress(Exception):
        copy = pickle.loads(pickle.dumps(error))
        if isinstance(copy, Exception) and type(copy) is type(error) and str(copy) == str(error):
            return copy
    return RuntimeError(f"{type(error).__name__}: {error}")


# --- the new process


def _serve(
    pipe: Connection, make: Callable[..., Work], arguments: tuple[Any, ...], own_group: bool
) -> None:
    """The main function of the process: an answer to each task, until the pipe is closed."""
    global _parent
    _parent = pipe
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if own_group:
        take_signals_from_parent()
    else:
        leave_signals_to_parent()
    work: Work | None = None

    def run(task: Any) -> Any:
        nonlocal work
        if work is None:
            work = make(*arguments)
        return work.run(task)

    with suppress(EOFError, OSError):  # the parent has closed the pipe, or is gone
        while True:
            answered = answer(run, pipe.recv_bytes())
            with _telling:
                pipe.send_bytes(answered)
    with suppress(Exception, SystemExit, KeyboardInterrupt):  # nobody waits for it
        if work is not None:
            work.close()
    with suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # to take down an interpreter with torch and simulators takes a second


def _end_with_parent() -> None:
    """End this process when its parent is killed; one that handles signals as if by SIGTERM."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)
