"""Jobs: what a command asks for, and what became of it.

A lone run is one job, a sweep has many. A job is trained alone or with others; neither a user's mistake nor
a simulator's failure raises here, both become an `Outcome`. Nothing heavy is imported before something
is trained.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.crash import describe, one_line, save
from privrl_bench.kernels.machine import check_hardware

if TYPE_CHECKING:
    from privrl_bench.experiment.runner import RunResult

RESULTS_FILE = "PRIVRL_BENCH_RESULTS"  # environment variable: where jobs leave their results


@dataclass(frozen=True)
class Job:
    """One run that is to be trained.

    Attributes:
        number: its place in the sweep; 0 for a lone run.
        config: the resolved and checked configuration.
        folder: the run folder.
        overrides: words of the command line, for the record.
    """

    number: int
    config: RunConfig
    folder: Path
    overrides: list[str]


@dataclass
class Outcome:
    """What one job left behind; plain data, so that it can cross process borders."""

    status: str
    reason: str = ""
    folder: str = ""
    exit_code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    bad_input: bool = False
    number: int = 0


def prepare(
    compose: Callable[[], RunConfig], number: int, folder: Path, overrides: list[str]
) -> Job | None:
    """A job that can be trained here; None, and its outcome recorded, when it cannot.

    Args:
        compose: makes the configuration; may raise `ConfigError`.
        number, folder, overrides: see `Job`.
    """
    try:
        run_config = compose()
        check_hardware(run_config)
    except ConfigError as error:
        remove_empty(folder)
        record(_refused(error, number, folder))
    except Exception as error:
        record(_broken(error, number, folder))
    else:
        return Job(number, run_config, folder, overrides)
    return None


def train(jobs: Sequence[Job]) -> list[Outcome]:
    """Train jobs together, which are equal but for seed and z. Returns how each ended, in order.

    Where the group as a whole cannot be trained, its jobs are tried one by one: whatever is wrong is
    then the matter of one job, and finished ones are skipped.
    """
    from privrl_bench.experiment.runner import run_each

    configs = [job.config for job in jobs]
    folders = [job.folder for job in jobs]
    try:
        results = run_each(configs, folders, [job.overrides for job in jobs])
    except Exception as error:  # the other jobs of a sweep go on
        if len(jobs) > 1:
            print(
                f"group   {one_line(describe(error))}; its {len(jobs)} jobs go on one by one",
                file=sys.stderr,
            )
            return _one_by_one(jobs)
        (job,) = jobs
        return [_broken(error, job.number, job.folder)]
    return [_outcome(job, result) for job, result in zip(jobs, results, strict=True)]


def _one_by_one(jobs: Sequence[Job]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for job in jobs:
        outcomes += train([job])
        if interruption(outcomes):
            break
    return outcomes


def _outcome(job: Job, result: RunResult | ConfigError) -> Outcome:
    if isinstance(result, ConfigError):
        remove_empty(job.folder)
        return _refused(result, job.number, job.folder)
    return Outcome(
        result.status,
        result.reason,
        str(result.folder),
        result.exit_code,
        result.summary,
        number=job.number,
    )


def _refused(error: ConfigError, number: int, folder: Path) -> Outcome:
    return Outcome("failed", one_line(error), str(folder), 2, bad_input=True, number=number)


def _broken(error: Exception, number: int, folder: Path) -> Outcome:
    reason = one_line(describe(error))
    print(f"error: {reason}; traceback in {save(error, folder)}", file=sys.stderr, flush=True)
    return Outcome("failed", reason, str(folder), 1, number=number)


def interruption(outcomes: Sequence[Outcome]) -> int:
    """Exit code of the first interrupted job; 0: none was interrupted."""
    codes = [outcome.exit_code or 130 for outcome in outcomes if outcome.status == "interrupted"]
    return codes[0] if codes else 0


def record(outcome: Outcome) -> None:
    """Append an outcome to the results file of this command."""
    path = os.environ.get(RESULTS_FILE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome), default=str) + "\n")


def recorded(path: Path) -> list[Outcome]:
    """The outcomes in a results file, in the order of the jobs."""
    outcomes = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]
    return sorted(outcomes, key=lambda outcome: outcome.number)


def remove_empty(folder: Path, leftover: str = "") -> None:
    """Take back the folders that Hydra made for a job that left nothing.

    Args:
        folder: of the job.
        leftover: name of a file that counts as nothing.
    """
    with contextlib.suppress(OSError):  # not empty: something is to be kept
        if folder.exists():
            folder.rmdir()
        for parent in folder.parents:
            if parent == Path.cwd() or not parent.is_relative_to(Path.cwd()):
                return
            if not parent.exists():
                continue
            if leftover and [path.name for path in parent.iterdir()] == [leftover]:
                (parent / leftover).unlink()
            parent.rmdir()
