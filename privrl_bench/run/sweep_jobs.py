"""Jobs: what a command asks for, and how each of them ended.

A lone run is one job, a sweep has many. A job is trained alone or with others; neither bad input nor a
failing simulator raises here, both become an `Outcome`. Heavy packages are imported when training starts.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.run.crash import PIPE, describe, one_line, reader_gone, save

if TYPE_CHECKING:
    from privrl_bench.run.runner import RunResult


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


@dataclass
class Outcome:
    """How one job ended; plain data, which can be sent between processes.

    Attributes:
        status: done, failed, interrupted, planned or skipped.
        reason: why it is not done; empty otherwise.
        folder: the run folder.
        exit_code: what a lone run exits with.
        summary: content of summary.json; empty if nothing was trained.
        bad_input: the configuration was refused.
        number: see `Job`.
    """

    status: str
    reason: str = ""
    folder: str = ""
    exit_code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    bad_input: bool = False
    number: int = 0

    def __float__(self) -> float:
        """The result, for sweepers that optimise one; NaN: there is none."""
        measured = self.summary.get(self.summary.get("measure", ""), {}).get("mean")
        return math.nan if measured is None else float(measured)


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


def train_in_turn(groups: Sequence[Sequence[Job]]) -> list[Outcome]:
    """Train groups one after the other in this process, until one is interrupted."""
    outcomes: list[Outcome] = []
    for group in groups:
        code = interruption(outcomes)
        outcomes += [not_started(job, code) for job in group] if code else train(group)
    return outcomes


def train(jobs: Sequence[Job]) -> list[Outcome]:
    """Train jobs together, which differ in the seed and in z only.

    When the group fails as a whole, its jobs are trained one at a time, so that an error affects one job
    only. Jobs that are done are skipped.

    Returns:
        How each job ended, in order.
    """
    from privrl_bench.run.runner import run_each

    configs = [job.config for job in jobs]
    folders = [job.folder for job in jobs]
    try:
        results = run_each(configs, folders, [job.overrides for job in jobs])
    except Exception as error:  # the other jobs of a sweep continue
        _leave_without_reader(error, *folders)
        if len(jobs) > 1:
            print(
                f"group   {one_line(describe(error))}; its {len(jobs)} jobs are trained one at a time",
                file=sys.stderr,
            )
            return train_in_turn([[job] for job in jobs])
        return [_failed(error, job.number, job.folder) for job in jobs]
    return [_outcome(job, result) for job, result in zip(jobs, results, strict=True)]


def _outcome(job: Job, result: RunResult | ConfigError) -> Outcome:
    if isinstance(result, ConfigError):
        return _failed(result, job.number, job.folder)
    return Outcome(
        result.status,
        result.reason,
        str(result.folder),
        result.exit_code,
        result.summary,
        number=job.number,
    )


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


def not_started(job: Job, code: int) -> Outcome:
    """Return the outcome of a job that an interruption with exit code `code` kept from starting."""
    reason = "interrupted before it started; rerun the same command to resume"
    return Outcome("interrupted", reason, str(job.folder), code, number=job.number)


def interruption(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code of the first interrupted job, or 0."""
    codes = [outcome.exit_code or 130 for outcome in outcomes if outcome.status == "interrupted"]
    return codes[0] if codes else 0


def remove_empty(folder: Path) -> None:
    """Remove the empty folders that Hydra made for a job, up to the working directory."""
    here = Path.cwd()
    with contextlib.suppress(OSError):  # not empty: something is to be kept
        for path in (folder, *folder.parents):
            if path != folder and (path == here or not path.is_relative_to(here)):
                return
            if path.exists():
                path.rmdir()
