"""Ctrl-C and SIGTERM end a run after its round."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """Stores a signal, so that the current round can be finished."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, _frame: object) -> None:
        """Store the first signal. The second raises `KeyboardInterrupt`."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def catching_signals() -> Iterator[Stop]:
    """Store SIGINT and SIGTERM in the yielded `Stop` (main thread only)."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
