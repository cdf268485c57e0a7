"""Jobs: what a command asks for, which of them are trained together, and in which processes.

A lone run is one job, a sweep has many. Jobs that differ in `seed` and `privacy.z` only form groups; each group
is trained as one batched program, one after the other in this process, or in several (`hardware.workers`), each
of which takes the next group when it has finished one. The results of a job do not depend on its group, apart
from rounding errors of some algorithms, which depend on the number of replicas: `docs/scaling.md`, "What is
equal to the last bit". Neither bad input nor a failing simulator raises here, both become an `Outcome`. Heavy
packages are imported when training starts.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from privrl_bench.composition.identity import group_key
from privrl_bench.composition.plugins import Additions, additions, restore
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import check_hardware, use_cores, workers_of
from privrl_bench.kernels.pipe_worker import PipeWorker, WorkerDied, tell
from privrl_bench.kernels.signals import handling_signals
from privrl_bench.training.crash import (
    PIPE,
    Outcome,
    describe,
    interruption,
    one_line,
    reader_gone,
    save,
)
from privrl_bench.training.progress import ProgressState, SweepDisplay, in_sweep, sent_to, title


@dataclass(frozen=True)
class Job:
    """One run that is to be trained.

    Attributes:
        number: position in the sweep; 0 for a lone run.
        config: the resolved and checked configuration.
        folder: the run folder.
        overrides: overrides of the command line, for the record.
    """

    number: int
    config: RunConfig
    folder: Path
    overrides: list[str]


def prepare(
    compose: Callable[[], RunConfig], number: int, folder: Path, overrides: list[str]
) -> Job | Outcome:
    """Return a job that can be trained here, or the outcome of one that cannot.

    Args:
        compose: makes the configuration; may raise `ConfigError`.
        number: see `Job`.
        folder: see `Job`.
        overrides: see `Job`.
    """
    try:
        run_config = compose()
        check_hardware(run_config)
    except Exception as error:
        return _failed(error, number, folder)
    return Job(number, run_config, folder, overrides)


def train(jobs: Sequence[Job]) -> list[Outcome]:
    """Train jobs together, which differ in the seed and in z only.

    When the group fails as a whole, its jobs are trained one at a time, or resumed, so that an error affects
    one job only. Jobs that are done are skipped.

    Returns:
        How each job ended, in order.
    """
    folders = [job.folder for job in jobs]
    results: list[Outcome | ConfigError]
    try:
        if not in_sweep():
            print(title(jobs[0].config), flush=True)  # before the second that imports take
        from privrl_bench.training.runner import run_each

        results = run_each([job.config for job in jobs], folders, [job.overrides for job in jobs])
    except Exception as error:  # the other jobs of a sweep continue
        _leave_without_reader(error, *folders)
        if len(jobs) == 1:
            return [_failed(error, jobs[0].number, jobs[0].folder)]
        print(
            f"group   {one_line(describe(error))}; its {len(jobs)} jobs are trained one at a time",
            file=sys.stderr,
        )
        results = [Outcome("failed", failed_with_group=True) for _ in jobs]
    outcomes: list[Outcome] = []
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, ConfigError):
            outcomes.append(_failed(result, job.number, job.folder))
        elif result.failed_with_group:
            code = interruption(outcomes)
            outcomes += [not_started(job, code)] if code else train([job])
        else:
            outcomes.append(replace(result, number=job.number))
    return outcomes


def _leave_without_reader(error: Exception, *folders: Path) -> None:
    """End the command quietly where the output is a pipe that was closed; a begun run can be resumed."""
    if reader_gone(error):
        for folder in folders:
            remove_empty(folder)
        raise SystemExit(PIPE)


def _failed(error: Exception, number: int, folder: Path) -> Outcome:
    """Return the outcome of bad input or of a defect, whose traceback goes to a file.

    Raises:
        SystemExit: nobody reads the output any more.
    """
    _leave_without_reader(error, folder)
    if isinstance(error, ConfigError):
        remove_empty(folder)
        return Outcome("failed", one_line(error), str(folder), 2, bad_input=True, number=number)
    reason = one_line(describe(error))
    print(f"error: {reason}; traceback in {save(error, folder)}", file=sys.stderr, flush=True)
    return Outcome("failed", reason, str(folder), 1, number=number)


def check_refused(outcomes: Sequence[Outcome]) -> None:
    """Raise `ConfigError` when every job was refused, so that nothing was trained."""
    reasons = list(dict.fromkeys(one.reason for one in outcomes))
    if outcomes and all(one.bad_input for one in outcomes):
        other = f"; another reason: {reasons[1]}" if len(reasons) > 1 else ""
        count = f" (all {len(outcomes)} jobs were refused{other})" if len(outcomes) > 1 else ""
        raise ConfigError("", f"{reasons[0]}{count}")


def not_started(job: Job, code: int) -> Outcome:
    """Return the outcome of a job that an interruption with exit code `code` kept from starting."""
    reason = "interrupted before it started; rerun the same command to resume"
    return Outcome("interrupted", reason, str(job.folder), code, number=job.number)


def remove_empty(folder: Path) -> None:
    """Remove the empty folders that Hydra made for a job, up to the working directory."""
    here = Path.cwd()
    with contextlib.suppress(OSError):  # not empty: something is to be kept
        for path in (folder, *folder.parents):
            if path != folder and (path == here or not path.is_relative_to(here)):
                return
            if path.exists():
                path.rmdir()


# --- groups

Group = list[Job]


def schedule(jobs: Sequence[Job], processes: int = 1) -> list[Group]:
    """Return groups with every job once, which may be trained at the same time.

    Args:
        jobs: in the order of the sweep, which is kept within a group.
        processes: groups are split until each process has one, if there are enough jobs.
    """
    alike: dict[str, Group] = {}
    for job in jobs:
        key = group_key(job.config) if job.config.algo.traits.replicas else f"alone {job.number}"
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
    """Return the number of parts in which jobs of one kind are trained.

    A part is at most what one process can hold, and at most `share` jobs. The number is rounded up to a
    multiple of `processes`, so that no process is idle in the end. With several kinds of jobs, `processes`
    is 1: the other kinds fill the gap.
    """
    count = math.ceil(len(members) / min(members[0].config.hardware.max_replicas, share))
    even = math.ceil(count / processes) * processes
    return min(even, len(members)) if count > processes else count


def _split(members: Group, count: int) -> list[Group]:
    """Split a group into `count` parts of nearly equal size, in order."""
    ends = [len(members) * i // count for i in range(count + 1)]
    return [members[a:b] for a, b in itertools.pairwise(ends)]


# --- processes


def run_jobs(jobs: Sequence[Job]) -> list[Outcome]:
    """Train all jobs of a sweep.

    After an interruption no further job is started. A job with the folder of an earlier one comes after the
    others, and finds what that job left.

    Returns:
        How each job ended, in the order of their numbers.
    """
    if not jobs:
        return []
    first = {str(job.folder): job.number for job in reversed(jobs)}
    later = [job for job in jobs if first[str(job.folder)] != job.number]
    now = [job for job in jobs if first[str(job.folder)] == job.number]
    processes = max(workers_of(job.config) for job in jobs)
    groups = schedule(now, processes)
    if len(jobs) > 1:
        words = (word for word in now[0].overrides if not word.endswith("=null"))
        common = [word for word in words if all(word in job.overrides for job in now)]
        print(
            f"sweep   {len(now)} jobs, up to {max(map(len, groups))} train together in one of "
            f"{len(groups)} groups; processes: {min(processes, len(groups))}\n"
            f"  all   {' '.join(common)}\n  folder  {os.path.commonpath([job.folder for job in now])}",
            flush=True,
        )
    shown = len(jobs) > 1 and any(job.config.log.progress for job in jobs)
    at_once = min(processes, len(groups))
    with contextlib.closing(SweepDisplay(groups, shown)) as display:
        if at_once > 1:
            outcomes, code = _in_processes(groups, at_once, max(1, processes // at_once), display)
        else:
            outcomes = _in_turn(groups, display, len(jobs) > 1)
            code = interruption(outcomes)
    outcomes += [not_started(job, code) for job in later] if code else run_jobs(later)
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _in_turn(groups: Sequence[Group], display: SweepDisplay, several: bool) -> list[Outcome]:
    """Train groups one after the other in this process; a lone job shows its own progress."""
    outcomes: list[Outcome] = []
    for group in groups:
        if code := interruption(outcomes):
            outcomes += [not_started(job, code) for job in group]
            continue
        listener = sent_to(functools.partial(display.update, group))
        with listener if several else contextlib.nullcontext():
            found = train(group)
        display.end(group)
        outcomes += found
    return outcomes


class _Worker(PipeWorker):
    """A process that trains groups, with so many workers of its own.

    Args:
        workers: that share the rounds of a group.
        display: shows the progress of its groups.
    """

    def __init__(self, workers: int, display: SweepDisplay) -> None:
        super().__init__(_Groups, additions(), workers, own_group=True)
        self._display = display
        self.group: Group = []

    def begin(self, task: Group) -> None:
        """Send a group to the process."""
        self.group = task
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
        self._display.end(self.group)
        self.group = []
        return outcomes

    def _failed(self, reason: str, signalled: int) -> list[Outcome]:
        """Write how the runs of a group ended that its process could not write."""
        from privrl_bench.training.folder import RunDir

        status, code = "failed", 1
        if signalled:
            status, reason, code = "interrupted", "its process was stopped", 128 + signalled
        reason += "; rerun the same command to resume"
        for job in self.group:
            RunDir(job.folder).end(status, reason)
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


class _Sent(io.TextIOBase):
    """Sends what is printed to the parent, line by line, which prints it beside its bar; is no terminal."""

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
    """

    def __init__(self, outside: Additions, workers: int) -> None:
        use_cores(workers)
        restore(outside)
        sys.stdout, sys.stderr = _Sent(False), _Sent(True)

    def run(self, group: Group) -> list[Outcome]:
        """Train a group."""
        with sent_to(tell):
            return train(group)

    def close(self) -> None:
        """Nothing is kept between groups."""
