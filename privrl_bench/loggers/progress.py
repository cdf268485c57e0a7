"""Progress of one run on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from privrl_bench.metrics import shown_epsilon

LINE_EVERY_S = 10.0  # pause between plain lines that carry no new return
BAR_EVERY_S = 0.1


class Progress:
    """Shows steps, speed, time left, the last evaluated return and the epsilon spent so far.

    `total_steps` and `initial_steps` count environment steps; the speed counts only the steps of
    this process, so a resumed run starts at `initial_steps` without looking fast. `unit` is another word for
    what is counted. `stream` and `clock` are for tests.
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
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = max(int(total_steps), 1)
        self._initial = self._steps = int(initial_steps)
        self._label, self._unit = label, unit
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._started = self._last_line = clock()
        self._return: float | None = None
        self._name = result
        self._epsilon: float | None = None
        self._enabled = enabled
        self._printed_steps = self._initial
        self._bar: Any = self._make_bar() if enabled and self._stream.isatty() else None

    def update(
        self, steps: int, *, return_mean: float | None = None, epsilon: float | None = None
    ) -> None:
        """Set the steps done so far; None keeps the last return or epsilon, NaN is an invalid return."""
        self._steps = int(steps)
        self._return = self._return if return_mean is None else return_mean
        self._epsilon = self._epsilon if epsilon is None else epsilon
        if not self._enabled:
            return
        if self._bar is not None:
            self._bar.n = min(self._steps, self._total)
            self._bar.set_postfix_str(self._results(), refresh=False)
            self._bar.update(0)
        elif return_mean is not None or self._clock() - self._last_line >= LINE_EVERY_S:
            self._print_line()

    def note(self, line: str) -> None:
        """Print one line beside the progress; also when progress is off, so nothing is lost."""
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Show the last state and stop. A second call does nothing."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
            self._bar = None
        elif self._enabled and self._printed_steps != self._steps:
            self._print_line()
        self._enabled = False

    def _make_bar(self) -> Any:
        from tqdm import tqdm

        return tqdm(
            total=self._total,
            initial=min(self._initial, self._total),
            desc=self._label,
            file=self._stream,
            unit=f" {self._unit}",
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=BAR_EVERY_S,
            miniters=0,
            bar_format=(
                "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}, {rate_fmt}, "
                "{remaining} left{postfix}"
            ),
        )

    def _print_line(self) -> None:
        self._last_line = self._clock()
        self._printed_steps = self._steps
        speed = (self._steps - self._initial) / max(self._last_line - self._started, 1e-9)
        left = (self._total - self._steps) / speed if speed > 0 else math.inf
        parts = [
            f"{self._label}: {self._steps:,} of {self._total:,} {self._unit} "
            f"({100 * self._steps / self._total:.0f} %)",
            f"{speed:,.0f} {self._unit}/s",
            self._results(),
            f"{duration(left)} left",
        ]
        print(", ".join(part for part in parts if part), file=self._stream, flush=True)

    def _results(self) -> str:
        parts = []
        if self._return is not None:
            valid = math.isfinite(self._return)
            parts.append(f"{self._name} {self._return:.4g}" if valid else f"{self._name} invalid")
        if self._epsilon is not None:
            parts.append(f"epsilon {shown_epsilon(self._epsilon)}")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time span in at most two units.

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
