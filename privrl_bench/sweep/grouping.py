"""A sweep as one program: which jobs are trained together, and in which process.

Jobs equal but for `seed` and `privacy.z` form groups, each trained as one batched program. Groups run one
after the other in this process, or in several (`hardware.processes`), each of which takes the next group
when it is done with one. What comes out of a job does not depend on any of this, but for the rounding of
batches of another size.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import FrameType

from privrl_bench.config.identity import group_key
from privrl_bench.config.schema import RunConfig
from privrl_bench.kernels.machine import cores
from privrl_bench.sweep.jobs import Job, Outcome, interruption, record, train

Group = list[Job]


def run_jobs(jobs: Sequence[Job]) -> int:
    """Train all jobs of a sweep and record their outcomes.

    Returns: exit code of an interruption, after which no job was started; 0 when there was none.
    """
    if not jobs:
        return 0
    from privrl_bench.experiment.runner import supports_replicas

    processes = max(job.config.hardware.processes or cores() for job in jobs)
    waves = schedule(jobs, supports_replicas, processes)
    groups = [group for wave in waves for group in wave]
    if len(jobs) > 1:
        print(
            f"sweep   {len(jobs)} jobs, up to {max(map(len, groups))} train together in one of "
            f"{len(groups)} groups; processes: {min(processes, len(groups))}",
            flush=True,
        )
    for wave in waves:
        at_once = min(processes, len(wave))
        code = _in_processes(wave, at_once) if at_once > 1 else _here(wave)
        if code:
            return code
    return 0


# --- which jobs are trained together


def schedule(
    jobs: Sequence[Job], together: Callable[[RunConfig], bool], processes: int = 1
) -> list[list[Group]]:
    """Waves of groups. Every job is in one group; the groups of one wave may run side by side.

    Args:
        jobs: in the order of the sweep, which is kept within a group.
        together: whether the runs of a configuration can be trained together.
        processes: what is enough work for one process is split until all have some.

    A folder is in a wave once. What has the folder of an earlier job (the same value twice in a sweep,
    or a folder set by hand) comes later and finds what that job left.
    """
    waves: list[list[Job]] = []
    seen: dict[str, int] = {}
    for job in jobs:
        wave = seen.get(str(job.folder), 0)
        seen[str(job.folder)] = wave + 1
        if wave == len(waves):
            waves.append([])
        waves[wave].append(job)
    return [_groups(wave, together, processes) for wave in waves]


def _groups(
    jobs: Sequence[Job], together: Callable[[RunConfig], bool], processes: int
) -> list[Group]:
    alike: dict[str, Group] = {}
    for job in jobs:
        key = group_key(job.config) if together(job.config) else f"alone {job.number}"
        alike.setdefault(key, []).append(job)
    share = math.ceil(len(jobs) / processes)
    groups = [
        part
        for members in alike.values()
        for part in _split(members, _parts(members, share, processes if len(alike) == 1 else 1))
    ]
    while len(groups) < min(processes, len(jobs)):  # shares do not always come out even
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        whole = groups[largest]
        groups[largest : largest + 1] = _split(whole, 2)
    return groups


def _parts(members: Group, share: int, processes: int) -> int:
    """In how many parts jobs are trained: what a process can hold, and its `share` of all. Three parts for two
    `processes` would leave one of them without work in the end: such parts are made smaller. (Where there are
    jobs of other kinds, these fill the gap: one process, so to say.)
    """
    count = math.ceil(len(members) / min(members[0].config.hardware.max_replicas, share))
    even = math.ceil(count / processes) * processes
    return min(even, len(members)) if count > processes else count


def _split(members: Group, count: int) -> list[Group]:
    """`count` parts, as equal in size as can be, in order."""
    ends = [len(members) * i // count for i in range(count + 1)]
    return [members[a:b] for a, b in itertools.pairwise(ends)]


# --- in this process


def _here(groups: Sequence[Group]) -> int:
    for group in groups:
        outcomes = train(group)
        for outcome in outcomes:
            record(outcome)
        if code := interruption(outcomes):
            return code
    return 0


# --- in several processes


class _Worker:
    """A process that trains the groups it is sent."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # torch and simulators dislike a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,))
        self.process.start()
        theirs.close()  # or its end would never be noticed
        self.group: Group = []

    def begin(self, group: Group) -> None:
        """Hand over a group; `collect` notices a process that is gone."""
        self.group = group
        with contextlib.suppress(OSError):
            self.pipe.send(group)

    def collect(self, signalled: int) -> list[Outcome]:
        """The outcomes of its group. `signalled`: the signal that this process passed on, or 0."""
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
            reason += "; run the same command to go on"
            exit_code = 128 + signalled if signalled else 1
            outcomes = [
                Outcome(status, reason, str(job.folder), exit_code, number=job.number)
                for job in self.group
            ]
        self.group = []
        return outcomes

    def stop(self) -> None:
        """End the process; a group in training is stopped after its round."""
        if self.group and self.process.is_alive():
            self.process.terminate()
        self.pipe.close()
        self.process.join()


def _in_processes(groups: Sequence[Group], count: int) -> int:
    """Train groups in `count` processes. Returns the exit code of an interruption, or 0."""
    waiting, code = deque(groups), 0
    workers: list[_Worker] = []
    with _passing_on_signals(workers) as signals:
        try:
            while True:
                while waiting and not signals and not code and len(workers) < count:
                    workers.append(_Worker())
                for worker in workers:
                    if waiting and not signals and not code and not worker.group:
                        worker.begin(waiting.popleft())
                busy = [worker for worker in workers if worker.group]
                if not busy:
                    return 128 + signals[0] if signals else code
                ready = wait([worker.pipe for worker in busy])
                for worker in busy:
                    if worker.pipe in ready:
                        outcomes = worker.collect(signals[0] if signals else 0)
                        for outcome in outcomes:
                            record(outcome)
                        code = code or interruption(outcomes)
                # A dead one that still has a group is collected first: the pipe tells of its end.
                workers[:] = [w for w in workers if w.group or w.process.is_alive()]
        finally:
            for worker in workers:
                worker.stop()


@contextlib.contextmanager
def _passing_on_signals(workers: list[_Worker]) -> Iterator[list[int]]:
    """SIGINT and SIGTERM go to the workers once each; yields the signals that came."""
    came: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        for worker in workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    old = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class _Lines(io.TextIOWrapper):
    """Not a terminal: several progress bars on one would overwrite each other."""

    def isatty(self) -> bool:
        return False


def _work(pipe: Connection) -> None:
    """Body of a worker process: trains groups until the pipe is closed."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent only, which passes it on
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # between two groups there is nothing to finish
    sys.stderr = _Lines(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            pipe.send(train(pipe.recv()))


def _stop_with_parent() -> None:
    """A sweep that was killed leaves no process that trains on unseen."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
