"""An object in a separate process, with asynchronous method calls."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

from privrl_bench.errors import EnvironmentFailure
from privrl_bench.kernels.machine import starting_processes
from privrl_bench.kernels.signals import leave_signals_to_parent

_DIED = "an environment worker process died"


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Main loop of the process: replies to (name, arguments) with (result, error message)."""
    leave_signals_to_parent()
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
            # Without the traceback, which may contain users' data.
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                pipe.send((None, f"{name} raised {type(error).__name__}: {error}"))
    except (EOFError, OSError):
        pass  # the parent has exited
    finally:
        if made is not None:
            made.close()


class Remote:
    """Proxy of the object that `make(*arguments)` returns in a new process.

    Results arrive in the order of the calls.

    Args:
        make: Picklable; its result must have a method `close`.
        *arguments: Of `make`.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any):
        context = mp.get_context("spawn")  # torch and simulators are not safe to fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        with starting_processes():
            self._process.start()
        theirs.close()
        self._made = False
        # The process exits when its pipe closes. At exit this must happen before the join.
        Finalize(self, Connection.close, args=(self._pipe,), exitpriority=10)

    def send(self, name: str, *arguments: Any) -> None:
        """Call a method. Raises EnvironmentFailure if the process has died."""
        try:
            self._pipe.send((name, arguments))
        except OSError:
            raise EnvironmentFailure(_DIED) from None

    def ready(self) -> bool:
        """Whether `answer` would return without waiting."""
        if not self._made and self._pipe.poll():
            self.wait_made()
        return self._pipe.poll()

    def wait_made(self) -> None:
        """Wait until the object is constructed. Raises EnvironmentFailure if construction failed."""
        if not self._made:
            self._made = True
            self._receive()

    def answer(self) -> Any:
        """Return the result of the oldest pending call. Raises EnvironmentFailure if it failed."""
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
            pass  # it has exited
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
