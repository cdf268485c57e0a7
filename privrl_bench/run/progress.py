"""Progress on stderr, of a run and of a whole sweep: bars on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from privrl_bench.metrics import shown_epsilon

if TYPE_CHECKING:
    from privrl_bench.run.sweep import Group, Outcome

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

    def results(self, name: str) -> list[str]:
        """The last result, of this name, and epsilon, as far as they are known."""
        parts = []
        if self.value is not None:
            valid = math.isfinite(self.value)
            parts.append(f"{name} {self.value:.4g}" if valid else f"{name} invalid")
        if self.epsilon is not None:
            parts.append(f"epsilon {shown_epsilon(self.epsilon)}")
        return parts


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


def _bars_on(stream: TextIO) -> Any:
    """The bars of a terminal, of rich; None: the stream is no terminal, or one without control codes."""
    if not stream.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(file=stream)
    if not console.is_interactive:  # TERM=dumb
        return None
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),  # a file must not lose what is printed meanwhile
    )
    bars.start()
    return bars


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
        first = int(initial_steps)
        self._state = ProgressState(first, first, max(int(total_steps), 1), None, None)
        self._printed = self._state
        self._label, self._result = label, result
        self._unit, self._each = unit, each
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._started = self._last_shown = clock()
        self._enabled = enabled
        self._listener = _listeners[-1] if _listeners else None
        self._bar = _bars_on(self._stream) if enabled and self._listener is None else None
        if self._bar is not None:
            self._bar.add_task(label, total=self._state.total, completed=first, state="")

    def update(
        self, steps: int, *, return_mean: float | None = None, epsilon: float | None = None
    ) -> None:
        """Set the steps done so far; None keeps the last return or epsilon, NaN is an invalid return."""
        before = self._state
        self._state = before._replace(
            steps=int(steps),
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
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Show the last state and stop. A second call does nothing."""
        if self._enabled and (self._bar is not None or self._printed.steps != self._state.steps):
            self._show()
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._enabled = None, False

    def _show(self) -> None:
        self._last_shown, self._printed = self._clock(), self._state
        steps, initial, total, _, _ = state = self._state
        if self._listener is not None:
            return self._listener(state)
        speed = (steps - initial) / max(self._last_shown - self._started, 1e-9)
        left = (total - steps) / speed if speed > 0 else math.inf
        parts = [
            f"{_pace(speed / self._each)} {self._unit}/s",
            *state.results(self._result),
            f"{duration(left)} left",
        ]
        text = ", ".join(parts)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=steps, state=text, refresh=True)
            return
        done = f"{steps // self._each:,} of {total // self._each:,} {self._unit}"
        share = f"{100 * steps / total:.0f} %"
        print(f"{self._label}: {done} ({share}), {text}", file=self._stream, flush=True)


class SweepDisplay:
    """Shows the progress of the groups in training, and one time left for the whole sweep.

    Args:
        groups: of the sweep, in order.
        enabled: show anything.
        stream: where to write; default stderr.
        clock: seconds.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        enabled: bool,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = {id(group): len(group) for group in groups}
        self._states: dict[int, ProgressState] = {}
        self._ended: dict[int, Counter[str]] = {}  # jobs by status
        self._stream = stream if stream is not None else sys.stderr
        self._clock, self._started = clock, clock()
        self._shown = self._started
        self._enabled = enabled
        self._bars = _bars_on(self._stream) if enabled else None
        self._rows: dict[int, Any] = {}
        if self._bars is not None:
            self._whole = self._bars.add_task("sweep", total=1.0, state="")
            for group, label in zip(groups, _labels(groups), strict=True):
                row = self._bars.add_task(label, total=1.0, state="", visible=False)
                self._rows[id(group)] = row

    @property
    def live(self) -> bool:
        """Whether there are bars, beside which only this object may write to the terminal."""
        return self._bars is not None

    def begin(self, group: Group) -> None:
        """A group is being trained."""
        self._row(group, visible=True)
        self._show(BAR_EVERY_S if self.live else math.inf)

    def update(self, group: Group, state: ProgressState) -> None:
        """Progress of a group."""
        self._states[id(group)] = state
        text = ", ".join(state.results("return"))
        self._row(group, completed=state.steps / state.total, state=text)
        self._show(BAR_EVERY_S if self.live else LINE_EVERY_S)

    def end(self, group: Group, outcomes: Sequence[Outcome]) -> None:
        """A group has ended."""
        counts = self._ended[id(group)] = Counter(outcome.status for outcome in outcomes)
        text = ", ".join(f"{number} {status}" for status, number in counts.items())
        self._row(group, state=text, visible=set(counts) != {"done"})
        self._show(0.0)

    def close(self) -> None:
        """Show the last state and stop. A second call does nothing."""
        if self._bars is not None:
            self._show(0.0)
            self._bars.stop()
        self._bars, self._enabled = None, False

    def _row(self, group: Group, **changes: Any) -> None:
        if self._bars is not None:
            self._bars.update(self._rows[id(group)], **changes)

    def _shares(self) -> tuple[float, float, int]:
        """Jobs done, of them by earlier commands, and all; skipped groups took no time and are left out."""
        done = earlier = 0.0
        skipped = [key for key in self._ended if key not in self._states]
        for key, state in self._states.items():
            done += self._jobs[key] * (1.0 if key in self._ended else state.steps / state.total)
            earlier += self._jobs[key] * state.initial / state.total
        return done, earlier, sum(self._jobs.values()) - sum(self._jobs[key] for key in skipped)

    def summary(self) -> str:
        """Jobs that have ended, share of the work, speed and time left of the whole sweep."""
        jobs, count = sum(self._jobs.values()), sum(map(Counter.total, self._ended.values()))
        if count == jobs:
            return f"{count} of {jobs} jobs ended"
        done, earlier, whole = self._shares()
        seconds = max(self._clock() - self._started, 1e-9)
        speed = sum(state.steps - state.initial for state in self._states.values()) / seconds
        left = seconds * (whole - done) / (done - earlier) if done > earlier else math.inf
        return (
            f"{count} of {jobs} jobs ended, {100 * done / whole:.0f} % done, {speed:,.0f} steps/s, "
            f"{duration(left)} left"
        )

    def _show(self, pause: float) -> None:
        if not self._enabled or self._clock() - self._shown < pause:
            return
        self._shown = self._clock()
        if self._bars is None:
            print(f"sweep   {self.summary()}", file=self._stream, flush=True)
            return
        done, _, whole = self._shares()
        share = done / whole if whole else 1.0
        self._bars.update(self._whole, completed=share, state=self.summary(), refresh=True)


def _labels(groups: Sequence[Group]) -> list[str]:
    """What distinguishes each group of a sweep, such as `z=0.5,1`: overrides that differ, the seed apart."""

    def words(group: Group) -> list[Mapping[str, str]]:
        return [dict(word.partition("=")[::2] for word in job.overrides) for job in group]

    every = [one for group in groups for one in words(group)]
    keys = dict.fromkeys(key for one in every for key in one if key != "seed")
    varied = [key for key in keys if len({one.get(key) for one in every}) > 1]
    found = []
    for group in groups:
        parts = []
        for key in varied:
            values = list(dict.fromkeys(one.get(key, "") for one in words(group)))
            shown = ",".join(values) if len(values) <= 4 else f"{values[0]}..{values[-1]}"
            parts.append(f"{key.removeprefix('privacy.')}={shown}")
        first = group[0].config
        found.append(" ".join(parts) or f"{first.algo.name} {first.env.label}")
    return found


def _pace(number: float) -> str:
    """Return a number per second: whole, or with two digits below 1.

    >>> _pace(1234.5), _pace(0.2381)
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


@contextlib.contextmanager
def quieted(quiet: bool) -> Iterator[None]:
    """Nothing on stdout, also from the processes of a sweep. `quiet=False` changes nothing."""
    if not quiet:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(io.StringIO()):
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
