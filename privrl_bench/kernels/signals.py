"""What ends a run early: Ctrl-C, SIGTERM, and SIGUSR1 and SIGUSR2, which schedulers send before a time limit.

During training a signal ends the run after its round. At any other time it raises `Stopped`, as Ctrl-C
does. Processes that help leave signals to their parent. Nothing heavy is imported here: commands import this
module before everything else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
STOP_SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
_PAUSE = 0.02  # seconds until an interrupt that was lost is sent again
_stop: Stop | None = None  # of `catching_signals`
_preparing = False
_raised: int | None = None  # a signal whose `Stopped` has not yet left `raising_signals`


class Stopped(KeyboardInterrupt):
    """A signal that ends a run, where no round can be finished.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Stop:
    """Stores a signal, so that the current round can be finished.

    Attributes:
        signal: the first signal; None: there was none.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int) -> None:
        """Store the first signal. The second raises `Stopped`, and so does the first during `preparing`."""
        if self.signal is not None or _preparing:
            raise Stopped(number)
        self.signal = number


class _Handler:
    """A handler of this package, which another one of it may replace for a while."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self._act(number)


@contextmanager
def handling_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of each signal that ends a run (main thread only).

    A handler that another package has installed for another signal than Ctrl-C's stays in place. For example,
    submitit's handler of SIGUSR2 puts the job back into the queue.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = _ours()
    for number in old:
        signal.signal(number, _Handler(act))
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _ours() -> dict[signal.Signals, Any]:
    """The signals that this package may handle, and their handlers."""
    all_of_them = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    return {
        number: handler
        for number, handler in all_of_them.items()
        if number == signal.SIGINT or handler == signal.SIG_DFL or isinstance(handler, _Handler)
    }


@contextmanager
def catching_signals() -> Iterator[Stop]:
    """Store the signals that end a run in the yielded `Stop`, after `raise_swallowed`."""
    global _stop
    raise_swallowed()
    _stop = stop = Stop()
    preparing(False)
    try:
        with handling_signals(stop):
            yield stop
    finally:
        _stop = None


def preparing(begins: bool) -> None:
    """Declare that something begins or ends which can take a minute and is no training, such as compilation.

    A round is not finished if that would include it.

    Raises:
        Stopped: it begins, and a signal was stored before.
    """
    global _preparing
    _preparing = begins
    main = threading.current_thread() is threading.main_thread()
    if begins and main and _stop is not None and _stop.signal is not None:
        raise Stopped(_stop.signal)


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise `Stopped` for the signals that end a run, unless this package handles them already."""
    global _raised

    def act(number: int) -> None:
        global _raised
        _raised = number
        raise Stopped(number)

    if isinstance(signal.getsignal(signal.SIGTERM), _Handler):
        yield
        return
    try:
        with handling_signals(act):
            yield
    finally:
        _raised = None


def raise_swallowed() -> None:
    """Raise `Stopped` again if other code has caught it, as compiled modules do while they are imported."""
    if _raised is not None:
        raise Stopped(_raised)


@contextmanager
def no_lost_interrupts() -> Iterator[None]:
    """Send an interrupt again that Python could only report, as one in a destructor or a callback."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not isinstance(error, KeyboardInterrupt):
            return before(unraisable)
        again = threading.Timer(_PAUSE, os.kill, (os.getpid(), exit_code(error) - 128))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def exit_code(error: KeyboardInterrupt) -> int:
    """Return 128 + the number of the signal that raised an exception.

    >>> exit_code(KeyboardInterrupt()), exit_code(Stopped(signal.SIGTERM))
    (130, 143)
    """
    return 128 + int(getattr(error, "signal", signal.SIGINT))


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Processes that are started meanwhile begin with these signals blocked, until they unblock them.

    Otherwise Ctrl-C, which a terminal sends to all processes, would end them with a traceback while they
    import. No signal to this process is lost.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # unblocks signals when it starts
    old = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def leave_signals_to_parent() -> None:
    """Ignore signals: the parent decides when to stop. After Ctrl-C it finishes its round."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _unblock()


def take_signals_from_parent() -> None:
    """Handle the signals that the parent passes on: training ends after its round, otherwise the process ends.

    It ends at once, without an exception, which an import could swallow: the parent notices and writes what
    became of its runs.
    """
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent only
    for number in _ours():
        signal.signal(number, _Handler(lambda number: os._exit(128 + number)))
    _unblock()


def _unblock() -> None:
    """Receive the signals that were sent since this process was started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
