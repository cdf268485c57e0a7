"""The processes of a sweep.

Groups of jobs are trained one after the other in this process, or in several processes
(`hardware.workers`), each of which takes the next group when it has finished one.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import NamedTuple

from privrl_bench.composition.plugins import Additions, additions, restore
from privrl_bench.kernels.machine import use_cores, workers_of
from privrl_bench.kernels.pipe_worker import PipeWorker, WorkerDied, tell
from privrl_bench.kernels.signals import handling_signals
from privrl_bench.run.crash import describe, one_line
from privrl_bench.run.grouping import Group, schedule
from privrl_bench.run.progress import ProgressState, sent_to
from privrl_bench.run.sweep_display import SweepDisplay
from privrl_bench.run.sweep_jobs import (
    Job,
    Outcome,
    interruption,
    not_started,
    train,
)


def run_jobs(jobs: Sequence[Job]) -> list[Outcome]:
    """Train all jobs of a sweep.

    After an interruption no further job is started.

    Returns:
        How each job ended, in the order of their numbers.
    """
    if not jobs:
        return []
    processes = max(workers_of(job.config) for job in jobs)
    waves = schedule(jobs, processes)
    groups = [group for wave in waves for group in wave]
    if len(jobs) > 1:
        print(
            f"sweep   {len(jobs)} jobs, up to {max(map(len, groups))} train together in one of "
            f"{len(groups)} groups; processes: {min(processes, len(groups))}",
            flush=True,
        )
    outcomes: list[Outcome] = []
    code = 0
    shown = len(jobs) > 1 and any(job.config.log.progress for job in jobs)
    with SweepDisplay(groups, shown).open() as display:
        for wave in waves:
            if code:
                outcomes += [not_started(job, code) for group in wave for job in group]
                continue
            at_once = min(processes, len(wave))
            if at_once > 1:
                found, code = _in_processes(wave, at_once, max(1, processes // at_once), display)
            else:
                found = _in_turn(wave, display, len(jobs) > 1)
                code = interruption(found)
            outcomes += found
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _in_turn(groups: Sequence[Group], display: SweepDisplay, several: bool) -> list[Outcome]:
    """Train groups one after the other in this process; a lone job shows its own progress."""
    outcomes: list[Outcome] = []
    for group in groups:
        if code := interruption(outcomes):
            outcomes += [not_started(job, code) for job in group]
            continue
        display.begin(group)
        if several:
            with sent_to(functools.partial(display.update, group)):
                found = train(group)
        else:
            found = train(group)
        display.end(group, found)
        outcomes += found
    return outcomes


class _Worker(PipeWorker):
    """A process that trains groups, with so many workers of its own.

    Args:
        workers: that share the rounds of a group.
        display: shows the progress of its groups, and what it prints if there is a table.
    """

    def __init__(self, workers: int, display: SweepDisplay) -> None:
        super().__init__(_Groups, additions(), workers, display.live, own_group=True)
        self._display = display
        self.group: Group = []

    def begin(self, task: Group) -> None:
        """Send a group to the process."""
        self.group = task
        self._display.begin(task)
        super().begin(task)

    def collect(self, signalled: int) -> list[Outcome]:
        """Receive a message: the outcomes of the group, or [] after its progress or printed text.

        Args:
            signalled: the signal that was passed on to the process, or 0.
        """
        try:
            message = self.result()
        except WorkerDied:
            self.process.join()
            code = self.process.exitcode or 0
            reason = f"its process ended with exit code {code}"
            if code < 0:
                reason = f"its process was killed by signal {-code} (is the memory full?)"
            message = self._failed(reason, signalled)
        except Exception as error:
            message = self._failed(one_line(describe(error)), signalled)
        if isinstance(message, ProgressState):
            self._display.update(self.group, message)
            return []
        if isinstance(message, _Printed):
            stream = sys.stderr if message.error else sys.stdout
            print(message.text, end="", file=stream, flush=True)
            return []
        outcomes: list[Outcome] = message
        self._display.end(self.group, outcomes)
        self.group = []
        return outcomes

    def _failed(self, reason: str, signalled: int) -> list[Outcome]:
        """Write how the runs of a group ended that its process could not write."""
        from privrl_bench.run import run_dir

        status, code = "failed", 1
        if signalled:
            status, reason, code = "interrupted", "its process was stopped", 128 + signalled
        reason += "; rerun the same command to resume"
        for job in self.group:
            run_dir.RunDir(job.folder).end(status, reason)
        return [
            Outcome(status, reason, str(job.folder), code, number=job.number) for job in self.group
        ]


def _in_processes(
    groups: Sequence[Group], count: int, workers: int, display: SweepDisplay
) -> tuple[list[Outcome], int]:
    """Train groups in `count` processes, with so many workers each.

    Returns:
        How each job ended, and the exit code of an interruption (0: there was none).
    """
    waiting, outcomes = deque(groups), list[Outcome]()
    processes: list[_Worker] = []
    with _passing_on_signals(processes) as signals:
        try:
            while True:
                code = interruption(outcomes)
                while waiting and not signals and not code and len(processes) < count:
                    processes.append(_Worker(workers, display))
                for worker in processes:
                    if waiting and not signals and not code and not worker.group:
                        worker.begin(waiting.popleft())
                busy = [worker for worker in processes if worker.group]
                if not busy:
                    code = 128 + signals[0] if signals else code
                    outcomes += [not_started(job, code) for group in waiting for job in group]
                    return outcomes, code
                ready = wait([worker.pipe for worker in busy])
                for worker in busy:
                    if worker.pipe in ready:
                        outcomes += worker.collect(signals[0] if signals else 0)
                # A dead worker that still has a group is collected first: its pipe signals the end.
                processes[:] = [w for w in processes if w.group or w.process.is_alive()]
        finally:
            for worker in processes:
                worker.close()


@contextlib.contextmanager
def _passing_on_signals(workers: list[_Worker]) -> Iterator[list[int]]:
    """Pass signals that end a run on to the workers; yields the list of those received so far."""
    received: list[int] = []

    def pass_on(number: int) -> None:
        received.append(number)
        for worker in workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, number)

    with handling_signals(pass_on):
        yield received


class _Printed(NamedTuple):
    """Text that a worker printed."""

    text: str
    error: bool  # on stderr


class _Lines(io.TextIOWrapper):
    """Is no terminal: the progress bars of several processes would overwrite each other."""

    def isatty(self) -> bool:
        return False


class _Sent(io.TextIOBase):
    """Sends what is printed to the parent, line by line, which prints it beside its table."""

    def __init__(self, error: bool) -> None:
        self._error, self._begun = error, ""

    def write(self, text: str) -> int:
        """Send the lines that are complete."""
        lines, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            tell(_Printed(lines + newline, self._error))
        return len(text)

    def writable(self) -> bool:
        """Yes."""
        return True


class _Groups:
    """Trains groups in a worker process; see `pipe_worker.Work`. Tells progress and printed text.

    Args:
        outside: what plugins have added to the parent.
        workers: that share the rounds of a group.
        live: the parent has a table on the terminal, so what is printed is told, too.
    """

    def __init__(self, outside: Additions, workers: int, live: bool) -> None:
        use_cores(workers)
        restore(outside)
        sys.stderr = _Lines(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
        if live:
            sys.stdout, sys.stderr = _Sent(False), _Sent(True)

    def run(self, group: Group) -> list[Outcome]:
        """Train a group."""
        with sent_to(tell):
            return train(group)

    def close(self) -> None:
        """Nothing is kept between groups."""
