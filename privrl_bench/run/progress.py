"""Progress of a run on stderr: a bar on a terminal or in a notebook, elsewhere a plain line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from privrl_bench.metrics import shown_epsilon

LINE_EVERY_S = 10.0  # pause between plain lines without a new return
RESULT_EVERY_S = 2.0  # and with one
BAR_EVERY_S = 0.1


class ProgressState(NamedTuple):
    """What a `Progress` knows: of runs that are trained together.

    Attributes:
        steps, initial, total: done, done by earlier commands, and planned.
        value: the last result; None: none yet, NaN: invalid.
        epsilon: spent; None: unknown, or not the same in all runs.
    """

    steps: int
    initial: int
    total: int
    value: float | None
    epsilon: float | None


Listener = Callable[[ProgressState], None]
_listeners: list[Listener] = []


@contextmanager
def sent_to(listener: Listener) -> Iterator[None]:
    """Send the state of every `Progress` that is made meanwhile to a listener, which shows it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Progress:
    """Shows steps, speed, time left, the last evaluated return and the epsilon spent so far.

    The speed counts the steps of this process only, so that a resumed run does not seem fast.

    Args:
        total_steps: environment steps of the whole run.
        enabled: show progress; notes are always shown.
        label: name of the run.
        initial_steps: steps of earlier parts of the run.
        result: name of the result.
        unit: what is counted.
        each: steps of one `unit`.
        stream: where to write; default stderr.
        clock: seconds.
    """

    def __init__(
        self,
        total_steps: int,
        enabled: bool,
        label: str,
        initial_steps: int = 0,
        *,
        result: str = "return",
        unit: str = "steps",
        each: int = 1,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = max(int(total_steps), 1)
        self._initial = self._steps = self._printed_steps = int(initial_steps)
        self._label, self._result = label, result
        self._unit, self._each = unit, each
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._started = self._last_shown = clock()
        self._return: float | None = None
        self._epsilon: float | None = None
        self._enabled = enabled
        self._listener = _listeners[-1] if _listeners else None
        alone = enabled and self._listener is None
        self._bar: Any = self._make_bar() if alone and self._stream.isatty() else None
        # A notebook's stream is no terminal, but a carriage return begins the line again.
        self._notebook = alone and type(self._stream).__module__.startswith("ipykernel")

    def update(
        self, steps: int, *, return_mean: float | None = None, epsilon: float | None = None
    ) -> None:
        """Set the steps done so far; None keeps the last return or epsilon, NaN is an invalid return."""
        self._steps = int(steps)
        self._return = self._return if return_mean is None else return_mean
        self._epsilon = self._epsilon if epsilon is None else epsilon
        if not self._enabled:
            return
        waited = self._clock() - self._last_shown
        if self._listener is not None or self._bar is not None or self._notebook:
            if return_mean is not None or waited >= BAR_EVERY_S:
                self._show()
        elif waited >= (LINE_EVERY_S if return_mean is None else RESULT_EVERY_S):
            self._show()

    def note(self, line: str) -> None:
        """Print one line beside the progress, also when progress is off."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            end = "\n" if self._notebook else ""
            print(f"{end}{line}", file=self._stream, flush=True)

    def close(self) -> None:
        """Show the last state and stop. A second call does nothing."""
        if self._enabled and (self._bar is not None or self._printed_steps != self._steps):
            self._show()
        if self._enabled and self._notebook:
            print(file=self._stream, flush=True)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._enabled = False

    def _make_bar(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(file=self._stream)
        if not console.is_interactive:  # TERM=dumb
            return None
        bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # a file must not lose what is printed meanwhile
        )
        bar.add_task(self._label, total=self._total, completed=self._initial, state="")
        bar.start()
        return bar

    def _show(self) -> None:
        self._last_shown = self._clock()
        self._printed_steps = self._steps
        if self._listener is not None:
            state = (self._steps, self._initial, self._total, self._return, self._epsilon)
            return self._listener(ProgressState(*state))
        speed = (self._steps - self._initial) / max(self._last_shown - self._started, 1e-9)
        left = (self._total - self._steps) / speed if speed > 0 else math.inf
        parts = [
            f"{pace(speed / self._each)} {self._unit}/s",
            self._results(),
            f"{duration(left)} left",
        ]
        text = ", ".join(part for part in parts if part)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._steps, state=text, refresh=True)
            return
        if self._notebook:
            count = 20 * self._steps // self._total
            line = f"{self._label} [{'#' * count}{'.' * (20 - count)}] {text}"
            print(f"\r{line:<110}", end="", file=self._stream, flush=True)
            return
        count, total = (number // self._each for number in (self._steps, self._total))
        done = f"{count:,} of {total:,} {self._unit}"
        share = f"{100 * self._steps / self._total:.0f} %"
        print(f"{self._label}: {done} ({share}), {text}", file=self._stream, flush=True)

    def _results(self) -> str:
        parts = []
        if self._return is not None:
            valid = math.isfinite(self._return)
            parts.append(
                f"{self._result} {self._return:.4g}" if valid else f"{self._result} invalid"
            )
        if self._epsilon is not None:
            parts.append(f"epsilon {shown_epsilon(self._epsilon)}")
        return ", ".join(parts)


def pace(number: float) -> str:
    """Return a number per second: whole, or with two digits below 1.

    >>> pace(1234.5), pace(0.2381)
    ('1,234', '0.24')
    """
    return f"{number:,.0f}" if number >= 1 or number == 0 else f"{number:.2g}"


def duration(seconds: float) -> str:
    """Return a time span in at most two units.

    >>> duration(59.6), duration(3700), duration(float("inf"))
    ('1 min', '1 h 1 min', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
