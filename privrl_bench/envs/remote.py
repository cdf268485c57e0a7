"""An object in a process of its own: calls are sent, answers collected when they are needed."""

from __future__ import annotations

import multiprocessing as mp
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

from privrl_bench.errors import EnvironmentFailure

_DIED = "an environment worker process died"


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Body of the process: answers (name, arguments) with (result, error message)."""
    # The parent decides when to stop; a Ctrl-C must let it finish its round.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    made = None
    try:
        made = make(*arguments)
        pipe.send((None, ""))
        while True:
            name, arguments = pipe.recv()
            if name == "close":
                break
            try:
                pipe.send((getattr(made, name)(*arguments), ""))
            except EnvironmentFailure as error:
                pipe.send((None, str(error)))
            except (
                Exception,
                SystemExit,
                KeyboardInterrupt,
            ) as error:  # its traceback may hold users' data
                pipe.send((None, f"{name} raised {type(error).__name__}: {error}"))
    except (EOFError, OSError):
        pass  # the parent is gone
    finally:
        if made is not None:
            made.close()


class Remote:
    """What `make(*arguments)` returns lives in a new process until `close`.

    Answers come in the order of the calls. The object must have a method `close`.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any):
        context = mp.get_context("spawn")  # torch and simulators dislike a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._made = False
        # The process ends when its pipe does. At exit that must come before it is waited for.
        Finalize(self, Connection.close, args=(self._pipe,), exitpriority=10)

    def send(self, name: str, *arguments: Any) -> None:
        """Call a method. Raises EnvironmentFailure if the process is gone."""
        try:
            self._pipe.send((name, arguments))
        except OSError:
            raise EnvironmentFailure(_DIED) from None

    def ready(self) -> bool:
        """Whether `answer` would return at once."""
        if not self._made and self._pipe.poll():
            self.wait_made()
        return self._pipe.poll()

    def wait_made(self) -> None:
        """Wait until the object is made. Raises EnvironmentFailure if it cannot be."""
        if not self._made:
            self._made = True
            self._receive()

    def answer(self) -> Any:
        """The result of the oldest call without one. Raises EnvironmentFailure as the call did."""
        self.wait_made()
        return self._receive()

    def _receive(self) -> Any:
        try:
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            raise EnvironmentFailure(_DIED) from None
        if error:
            raise EnvironmentFailure(error)
        return result

    def close(self) -> None:
        """End the process."""
        try:
            self._pipe.send(("close", ()))
            self._pipe.close()
        except OSError:
            pass  # it is gone already
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
