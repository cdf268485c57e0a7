"""How runs and commands end: an outcome; one line on stderr, an exit code, and the traceback of a defect.

Exit codes: 0 success; 1 a failure; 2 bad input, nothing was started; 128 + the signal's number interrupted
(130 after Ctrl-C); 141 nobody reads the output any more. Heavy imports happen inside `guarded`, so that Ctrl-C
during them is one line, too.
"""

from __future__ import annotations

import os
import platform
import select
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from privrl_bench.errors import ConfigError
from privrl_bench.kernels import signals

ERROR_FILE = "error.txt"  # in a run folder
OUTPUT_ROOT = "outputs"
PIPE = 141  # exit code of a command whose output nobody reads any more, as of Unix tools


@dataclass
class Outcome:
    """How one run ended; plain data, which can be sent between processes.

    Attributes:
        status: done, failed, interrupted, planned or skipped.
        reason: why it is not done; empty otherwise.
        folder: the run folder.
        exit_code: what a lone run exits with.
        summary: content of summary.json; empty if nothing was trained.
        bad_input: the configuration was refused.
        number: see `sweep.Job`.
        failed_with_group: it failed because its group did; trained alone it may succeed.
        warnings: that a lone run prints before it trains.
    """

    status: str
    reason: str = ""
    folder: str = ""
    exit_code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    bad_input: bool = False
    number: int = 0
    failed_with_group: bool = False
    warnings: tuple[str, ...] = ()


def interruption(outcomes: Iterable[Outcome | ConfigError]) -> int:
    """Return the exit code of the first interrupted run, or 0."""
    ended = [one for one in outcomes if isinstance(one, Outcome)]
    return next((one.exit_code or 130 for one in ended if one.status == "interrupted"), 0)


def guarded(main: Callable[[], int], interrupted: str = "rerun the same command to resume") -> int:
    """Load the installed plugins and run a command; any exception becomes one line on stderr and an exit code.

    The traceback of anything but bad input goes to a file.

    Args:
        main: returns the exit code.
        interrupted: printed after Ctrl-C or another signal that ends a run.

    Returns:
        The exit code.

    Raises:
        SystemExit: with another code than 0, which `--help` leaves with.
    """
    try:
        with signals.raising_signals(), signals.no_lost_interrupts():
            from privrl_bench.composition.plugins import load_installed

            load_installed()
            signals.raise_swallowed()
            code = main()
            sys.stdout.flush()  # a closed pipe is noticed here, not at the interpreter's exit
            return code
    except SystemExit as leave:
        if leave.code:
            raise
        return 0
    except ConfigError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"interrupted; {interrupted}", file=sys.stderr)
        return signals.exit_code(error)
    except Exception as error:
        if reader_gone(error):
            return PIPE
        print(f"error: {one_line(describe(error))}; traceback in {save(error)}", file=sys.stderr)
        return 1


def reader_gone(error: BaseException) -> bool:
    """Whether the reader of the output has gone, as with `| head`; what is printed after that is dropped.

    The broken pipe of a process that helps with the training is a failure and not this.
    """
    if not isinstance(error, BrokenPipeError):
        return False
    closed = [stream for stream in (sys.stdout, sys.stderr) if _closed(stream)]
    for stream in closed:  # or the interpreter's last flush would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(closed)


def _closed(stream: TextIO) -> bool:
    """Whether nobody can read what is written."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # not a file, or closed by us
        return False


def describe(error: BaseException, private: bool = False) -> str:
    """Return the type and the message of an exception.

    Args:
        error: the exception.
        private: the message may contain data of real users; it is then in the private file error.txt only.

    >>> describe(ValueError("no such state"))
    'ValueError: no such state'
    """
    if private:
        return f"{type(error).__name__}: the message is in {ERROR_FILE}, which is private"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def one_line(problem: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(problem).split())


def save(error: BaseException, folder: Path | None = None) -> Path:
    """Write the traceback, the command line and the versions to a file.

    Args:
        error: the exception.
        folder: the run folder. Without one, or where it cannot be written, the file goes to the output root
            if there is one, and to the system's temporary folder otherwise.

    Returns:
        The path of the file.
    """
    text = (
        f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
        f"command   {shlex.join(sys.argv)}\nfolder    {os.getcwd()}\n"
        f"version   privrl_bench {version()}, Python {platform.python_version()}, "
        f"{platform.platform()}\n\n{''.join(traceback.format_exception(error))}"
    )
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    places = [] if folder is None else [folder / ERROR_FILE]
    for path in (*places, Path(OUTPUT_ROOT) / name):
        if path.parent.is_dir():
            try:
                path.write_text(text, encoding="utf-8")
            except OSError:
                continue
            return path
    handle, last = tempfile.mkstemp(prefix="privrl_bench-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(last)


def version() -> str:
    """Return the version of this package."""
    import importlib.metadata

    try:
        return importlib.metadata.version("privrl_bench")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
