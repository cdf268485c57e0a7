"""The progress of a whole sweep on stderr: one table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from privrl_bench.metrics import shown_epsilon
from privrl_bench.run.grouping import Group
from privrl_bench.run.progress import BAR_EVERY_S, LINE_EVERY_S, ProgressState, duration
from privrl_bench.run.sweep_jobs import Job, Outcome

_LEFT_OVER_LINES = 8  # of a terminal, for what is not the table
_STYLES = {"failed": "red", "interrupted": "yellow", "done": "green", "waiting": "dim"}


@dataclass
class _Row:
    """What is known of a group."""

    label: str
    jobs: int
    expected: int | None  # steps of the group by its configuration
    status: str = "waiting"
    state: ProgressState | None = None

    @property
    def steps(self) -> int:
        """Steps done, those of earlier commands included."""
        return 0 if self.state is None else self.state.steps

    def total(self, each: float) -> float:
        """Steps of the whole group, where a job of other groups has `each`."""
        if self.state is not None:
            return self.state.total
        if self.status not in ("waiting", "training"):
            return 0  # skipped, or failed before its first round
        return self.jobs * each if self.expected is None else self.expected


class SweepDisplay:
    """Shows status, steps, last result and epsilon of each group, and one time left for all of them.

    Args:
        groups: of the sweep, in order.
        enabled: show anything.
        stream: where to write; default stderr.
        clock: seconds.

    Attributes:
        live: whether there is a table, beside which only this object may write to the terminal.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        enabled: bool,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        varied = _varied([job for group in groups for job in group])
        self._rows = {id(g): _Row(_label(g, varied), len(g), _expected(g)) for g in groups}
        self._jobs = sum(map(len, groups))
        self._ended = Counter[str]()  # jobs by status
        self._stream = stream if stream is not None else sys.stderr
        self._clock, self._started = clock, clock()
        self._shown = self._started
        self._enabled = enabled
        self._table: Any = self._open() if enabled and self._stream.isatty() else None

    @property
    def live(self) -> bool:
        """See the class."""
        return self._table is not None

    @contextmanager
    def open(self) -> Iterator[SweepDisplay]:
        """Close it at the end."""
        try:
            yield self
        finally:
            self.close()

    def begin(self, group: Group) -> None:
        """A group is being trained."""
        self._rows[id(group)].status = "training"
        self._show(BAR_EVERY_S if self.live else math.inf)

    def update(self, group: Group, state: ProgressState) -> None:
        """Progress of a group."""
        self._rows[id(group)].state = state
        self._show(BAR_EVERY_S if self.live else LINE_EVERY_S)

    def end(self, group: Group, outcomes: Sequence[Outcome]) -> None:
        """A group has ended."""
        counts = Counter(outcome.status for outcome in outcomes)
        self._ended.update(counts)
        self._rows[id(group)].status = (
            next(iter(counts))
            if len(counts) == 1
            else ", ".join(f"{number} {status}" for status, number in counts.items())
        )
        self._show(0.0)

    def close(self) -> None:
        """Show the last state and stop. A second call does nothing."""
        if self._table is not None:
            self._show(0.0)
            self._table.stop()
        self._table, self._enabled = None, False

    # --- what is shown

    def summary(self) -> str:
        """Jobs that have ended, share of the steps, speed and time left of the whole sweep."""
        rows = list(self._rows.values())
        seen = [row for row in rows if row.state is not None]
        each = sum(row.total(0.0) / row.jobs for row in seen) / len(seen) if seen else 0.0
        total = sum(row.total(each) for row in rows)
        done = sum(row.steps for row in rows)
        new = sum(row.state.steps - row.state.initial for row in seen if row.state is not None)
        speed = new / max(self._clock() - self._started, 1e-9)
        count = sum(self._ended.values())
        if count == self._jobs:
            return f"{count} of {self._jobs} jobs ended"
        left = (total - done) / speed if speed > 0 else math.inf
        share = f"{100 * done / total:.0f} %" if total else "0 %"
        return (
            f"{count} of {self._jobs} jobs ended, {share} of all steps, {speed:,.0f} steps/s, "
            f"{duration(left)} left"
        )

    def _show(self, pause: float) -> None:
        if not self._enabled or self._clock() - self._shown < pause:
            return
        self._shown = self._clock()
        if self._table is not None:
            self._table.update(self._draw(), refresh=True)
        else:
            print(f"sweep   {self.summary()}", file=self._stream, flush=True)

    def _open(self) -> Any:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream)
        if not console.is_interactive:  # TERM=dumb
            return None
        live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # a file must not lose what is printed meanwhile
        )
        live.start()
        return live

    def _draw(self) -> Any:
        from rich import box
        from rich.console import Group as Lines
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("group", "jobs", "status", "steps", "return", "epsilon"):
            table.add_column(name, no_wrap=True)
        rows = list(self._rows.values())
        room = max(self._table.console.height - _LEFT_OVER_LINES, 4) if self._table else len(rows)
        order = sorted(rows, key=lambda row: row.status != "training")[:room]
        for row in [row for row in rows if row in order]:
            table.add_row(*map(escape, _cells(row)), style=_STYLES.get(row.status))
        if len(rows) > room:
            table.add_row(f"and {len(rows) - room} more groups", style="dim")
        return Lines(table, self.summary())


def _cells(row: _Row) -> tuple[str, ...]:
    state = row.state
    if state is None:
        return row.label, str(row.jobs), row.status, "-", "-", "-"
    value, epsilon = state.value, state.epsilon
    shown = "-" if value is None else f"{value:.4g}" if math.isfinite(value) else "invalid"
    share = f"{state.steps:,} ({100 * state.steps / state.total:.0f} %)"
    spent = "-" if epsilon is None else shown_epsilon(epsilon)
    return row.label, str(row.jobs), row.status, share, shown, spent


def _varied(jobs: Sequence[Job]) -> list[str]:
    """Keys of the overrides in which jobs differ, without the seed."""
    words = [dict(word.partition("=")[::2] for word in job.overrides) for job in jobs]
    keys = dict.fromkeys(itertools.chain.from_iterable(words))
    return [key for key in keys if key != "seed" and len({one.get(key) for one in words}) > 1]


def _label(group: Group, varied: Sequence[str]) -> str:
    """What distinguishes a group, for example `z=0.5,1`."""
    first = group[0].config
    words = [dict(word.partition("=")[::2] for word in job.overrides) for job in group]
    parts = []
    for key in varied:
        values = list(dict.fromkeys(one.get(key, "") for one in words))
        shown = ",".join(values) if len(values) <= 4 else f"{values[0]}..{values[-1]}"
        parts.append(f"{key.removeprefix('privacy.')}={shown}")
    return " ".join(parts) or f"{first.algo.name} {first.env.label}"


def _expected(group: Group) -> int | None:
    config = group[0].config
    return None if config.rounds is not None else len(group) * config.total_steps
