"""The processes of a sweep.

Groups of jobs are trained one after the other in this process, or in several processes
(`hardware.workers`), each of which takes the next group when it has finished one.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import FrameType

from privrl_bench.config.plugins import Additions, additions, restore
from privrl_bench.kernels.machine import use_cores, without_main, workers_of
from privrl_bench.sweep.grouping import Group, schedule
from privrl_bench.sweep.jobs import (
    Job,
    Outcome,
    interruption,
    not_started,
    train,
    train_in_turn,
)


def run_jobs(jobs: Sequence[Job]) -> list[Outcome]:
    """Train all jobs of a sweep.

    After an interruption no further job is started.

    Returns:
        How each job ended, in the order of their numbers.
    """
    if not jobs:
        return []
    from privrl_bench.experiment.runner import supports_replicas

    processes = max(workers_of(job.config) for job in jobs)
    waves = schedule(jobs, supports_replicas, processes)
    groups = [group for wave in waves for group in wave]
    if len(jobs) > 1:
        print(
            f"sweep   {len(jobs)} jobs, up to {max(map(len, groups))} train together in one of "
            f"{len(groups)} groups; processes: {min(processes, len(groups))}",
            flush=True,
        )
    outcomes: list[Outcome] = []
    code = 0
    for wave in waves:
        if code:
            outcomes += [not_started(job, code) for group in wave for job in group]
            continue
        at_once = min(processes, len(wave))
        if at_once > 1:
            found, code = _in_processes(wave, at_once, max(1, processes // at_once))
        else:
            found = train_in_turn(wave)
            code = interruption(found)
        outcomes += found
    return sorted(outcomes, key=lambda outcome: outcome.number)


class _Worker:
    """A process that trains groups, with so many workers of its own."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # torch and simulators do not support fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, additions(), workers))
        with without_main():
            self.process.start()
        theirs.close()  # otherwise the end of the process is not noticed
        self.group: Group = []

    def begin(self, group: Group) -> None:
        """Send a group to the process; `collect` notices a dead process."""
        self.group = group
        with contextlib.suppress(OSError):
            self.pipe.send(group)

    def collect(self, signalled: int) -> list[Outcome]:
        """Receive the outcomes of the group.

        Args:
            signalled: the signal that was passed on to the process, or 0.
        """
        try:
            outcomes: list[Outcome] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            status, reason = "failed", f"its process ended with exit code {code}"
            if signalled:
                status, reason = "interrupted", "its process was stopped"
            elif code < 0:
                reason = f"its process was killed by signal {-code} (is the memory full?)"
            reason += "; rerun the same command to resume"
            exit_code = 128 + signalled if signalled else 1
            outcomes = [
                Outcome(status, reason, str(job.folder), exit_code, number=job.number)
                for job in self.group
            ]
        self.group = []
        return outcomes

    def stop(self) -> None:
        """End the process; a group that is being trained is interrupted after its round."""
        if self.group and self.process.is_alive():
            self.process.terminate()
        self.pipe.close()
        self.process.join()


def _in_processes(groups: Sequence[Group], count: int, workers: int) -> tuple[list[Outcome], int]:
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
                    processes.append(_Worker(workers))
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
                worker.stop()


@contextlib.contextmanager
def _passing_on_signals(workers: list[_Worker]) -> Iterator[list[int]]:
    """Pass SIGINT and SIGTERM on to the workers; yields the list of signals received so far."""
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for worker in workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    old = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class _Lines(io.TextIOWrapper):
    """Is no terminal: the progress bars of several processes would overwrite each other."""

    def isatty(self) -> bool:
        return False


def _work(pipe: Connection, outside: Additions, workers: int) -> None:
    """Train groups until the pipe is closed; the main function of a worker process.

    Args:
        pipe: receives groups and sends outcomes.
        outside: what plugins have added to the parent.
        workers: that share the rounds of a group.
    """
    use_cores(workers)
    restore(outside)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent only, which passes it on
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # between two groups there is nothing to save
    sys.stderr = _Lines(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            pipe.send(train(pipe.recv()))


def _stop_with_parent() -> None:
    """End this process when its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
