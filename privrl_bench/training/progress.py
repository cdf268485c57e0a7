"""Text on a terminal, and progress on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TextIO

from privrl_bench.config.schema import RunConfig
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


@contextlib.contextmanager
def sent_to(listener: Listener) -> Iterator[None]:
    """Send the state of every `Progress` that is made meanwhile to a listener, which shows it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def in_sweep() -> bool:
    """Whether the runs of this process are shown by a sweep, which sums them up."""
    return bool(_listeners)


def title(config: RunConfig) -> str:
    """The first line of a run."""
    return f"{config.algo.name} on {config.env.label}  seed={config.seed}"


_COLOURS = {"formal": 32, "heuristic": 33, "unreviewed": 33, "not private": 31}


def coloured(text: str) -> str:
    """A text with the first status of a guarantee in its colour, on a terminal and unless NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    status = rf"\b({'|'.join(_COLOURS)})\b"
    return re.sub(status, lambda m: f"\x1b[{_COLOURS[m[1]]}m{m[1]}\x1b[0m", text, count=1)


def folded(head: str, text: str) -> str:
    """A text behind its head, on a terminal in lines of 80 to 120 columns with a hanging indent.

    Words are not cut. A file has one line, so that it can be searched.

    >>> folded("  plan    ", "146 rounds of 64 users")
    '  plan    146 rounds of 64 users'
    """
    if not sys.stdout.isatty():
        return f"{head}{text}"
    width = min(max(shutil.get_terminal_size().columns, 80), 120)
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _bar_on(stream: TextIO, label: str, total: int, completed: int = 0) -> Any:
    """A bar on a terminal, of rich; None: the stream is no terminal, or one without control codes."""
    if not stream.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(file=stream)
    if not console.is_interactive:  # TERM=dumb
        return None
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),  # a file must not lose what is printed meanwhile
    )
    bar.add_task(label, total=total, completed=completed, state="")
    bar.start()
    return bar


class Progress:
    """Shows steps, time left, speed, the last evaluated return and the epsilon spent so far.

    The speed counts the steps of this process only, so that a resumed run does not seem fast, and after its
    first ones, which wait for compilation.

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
        first = int(initial_steps)
        self._state = ProgressState(first, first, max(int(total_steps), 1), None, None)
        self._printed = self._state
        self._label, self._result = label, result
        self._unit, self._each = unit, each
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._since = self._last_shown = clock()  # after the first steps
        self._warm = 0  # the first steps of a run
        self._enabled = enabled
        self._listener = _listeners[-1] if _listeners else None
        alone = enabled and self._listener is None
        self._bar = _bar_on(self._stream, label, self._state.total, first) if alone else None

    def update(
        self,
        steps: int,
        *,
        initial: int | None = None,
        return_mean: float | None = None,
        epsilon: float | None = None,
    ) -> None:
        """Set the steps done so far; None keeps the last value, NaN is an invalid return."""
        before = self._state
        initial = before.initial if initial is None else initial
        if not self._warm and steps > initial:
            self._warm, self._since = int(steps) - initial, self._clock()
        self._state = before._replace(
            steps=int(steps),
            initial=initial,
            value=before.value if return_mean is None else return_mean,
            epsilon=before.epsilon if epsilon is None else epsilon,
        )
        if self._listener is not None or self._bar is not None:
            pause = BAR_EVERY_S if return_mean is None else 0.0
        else:
            pause = LINE_EVERY_S if return_mean is None else RESULT_EVERY_S
        if self._enabled and self._clock() - self._last_shown >= pause:
            self._show()

    def note(self, line: str) -> None:
        """Print one line beside the progress, also when progress is off."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            # One write: unbuffered, print would write the line's end apart, and Ctrl-C could come between.
            print(f"{line}\n", end="", file=self._stream, flush=True)

    def close(self) -> None:
        """Show the last state and stop. A second call does nothing."""
        if self._enabled and self._printed.steps != self._state.steps:
            self._show()
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._enabled = None, False

    def _show(self) -> None:
        self._last_shown, self._printed = self._clock(), self._state
        steps, initial, total, value, epsilon = self._state
        if self._listener is not None:
            return self._listener(self._state)
        done = steps - initial - self._warm
        speed = done / max(self._last_shown - self._since, 1e-9)
        parts = []
        if done > 0:
            parts.append(f"{duration((total - steps) / speed)} left")
            parts.append(f"{_pace(speed / self._each)} {self._unit}/s")
        if value is not None:
            valid = math.isfinite(value)
            parts.append(f"{self._result} {value:.4g}" if valid else f"{self._result} invalid")
        if epsilon is not None:
            parts.append(f"epsilon {shown_epsilon(epsilon)}")
        text = ", ".join(parts)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=steps, state=text, refresh=True)
            return
        count = f"{steps // self._each:,} of {total // self._each:,} {self._unit}"
        share = f"{100 * steps / total:.0f} %"
        text = ", ".join([f"{self._label}: {count} ({share})", *parts])
        print(f"{text}\n", end="", file=self._stream, flush=True)


_SHARES = 10_000  # of a job, in which a sweep counts


class SweepDisplay:
    """Shows how far a whole sweep is, with one time left for all of its groups.

    Skipped groups, which take no time, and what earlier commands did make no sweep fast.

    Args:
        groups: of the sweep, with their jobs.
        enabled: show anything.
        **more: stream and clock, see `Progress`.
    """

    def __init__(self, groups: Sequence[Sequence[object]], enabled: bool, **more: Any) -> None:
        total = _SHARES * sum(map(len, groups))
        self._progress = Progress(total, enabled, "sweep", unit="jobs", each=_SHARES, **more)
        self._jobs: dict[int, tuple[float, float]] = {}  # of a group: done, and done earlier
        self.close = self._progress.close

    def update(self, group: Sequence[object], state: ProgressState) -> None:
        """Progress of a group."""
        share = len(group) / state.total
        self._show(group, share * state.steps, share * state.initial)

    def end(self, group: Sequence[object]) -> None:
        """A group has ended."""
        _, earlier = self._jobs.get(id(group), (0, len(group)))
        self._show(group, len(group), earlier)

    def _show(self, group: Sequence[object], done: float, earlier: float) -> None:
        self._jobs[id(group)] = done, earlier
        steps, initial = (
            round(_SHARES * sum(all_of)) for all_of in zip(*self._jobs.values(), strict=True)
        )
        self._progress.update(steps, initial=initial)


def _pace(number: float) -> str:
    """Return a number per second: whole, or with two digits below 1.

    >>> _pace(1234.5), _pace(0.2381)
    ('1,234', '0.24')
    """
    return f"{number:,.0f}" if number >= 1 or number == 0 else f"{number:.2g}"


def duration(seconds: float) -> str:
    """Return a time span as hours, minutes and seconds, after days if there are any.

    >>> duration(59.6), duration(3700), duration(float("inf"))
    ('0:01:00', '1:01:40', '?')
    """
    return str(timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "?"
