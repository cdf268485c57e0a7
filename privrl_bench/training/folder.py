"""The run folder: all files of a run, written as it proceeds, and who may see them.

`FILES` has every name but those that `Algorithm.export` writes. The leak test compares every file of a run
folder that is not `private` or `machine`, also one that is not listed.

`metrics.jsonl` does not depend on the clock, so that a run which was killed and resumed leaves the same bytes
as an uninterrupted one; steps/s and seconds are in `timing.jsonl`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from privrl_bench.composition.identity import identity
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.signals import exit_code
from privrl_bench.privacy.ledger import Mark, require_reaches, sync_folder
from privrl_bench.training import crash
from privrl_bench.training.provenance import provenance

# Who may see a file: `public`, known before training; `released`, a function of releases, evaluations and
# the configuration (of metrics.jsonl: the columns that `metrics.py` does not call private); `private`, to be
# kept with the users' data; `machine`, about the clock, the host and the process, which the guarantee does not
# cover.
FILES = {
    "config.yaml": "public",
    "identity.json": "public",
    "overrides.txt": "public",
    "plan.json": "public",
    "leaks.json": "public",
    "epsilon.json": "public",
    "status.json": "released",
    "metrics.jsonl": "released",
    "samples.jsonl": "released",  # examples of evaluations
    "summary.json": "released",
    "policy.pt": "released",
    "curve.png": "released",
    "checkpoint.pt": "private",
    "ledger.jsonl": "private",
    "timing.jsonl": "private",
    crash.ERROR_FILE: "private",  # the traceback of a failure
    "provenance.json": "machine",
    "budget.json": "machine",
    "wandb": "machine",  # a copy of what the leak test compares as it is sent
    "wandb_id.txt": "machine",
}
BUDGET = "budget.json"  # in a run folder: the reservation that it holds; in a dataset's: its budget
LOCKS = ".locks"  # folder beside run folders


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file so that a crash or a power cut leaves the old content or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically. Infinity is written as `Infinity`, which Python reads."""
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode())


def json_safe(value: Any) -> Any:
    """Return a value as plain JSON data; non-finite floats become "inf", "-inf", "nan".

    For the configuration, which must be strict JSON.
    """
    if isinstance(value, Mapping):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a .jsonl file, without an incomplete last line."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file of a run folder.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it holds no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError("resume", f"{path} is damaged; use resume=restart")
    return found


class RunDir:
    """One run folder."""

    def __init__(self, path: Path):
        self.path = path

    def __truediv__(self, name: str) -> Path:
        """Return the path of a file of `FILES`. Raises KeyError: it is not listed."""
        if name not in FILES:
            raise KeyError(f"{name} is not among the files of a run folder; add it to FILES")
        return self.path / name

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes: two of them would each count half of the releases.

        The lock file is in a hidden folder beside the run folder, so that `resume=restart` can move the
        run folder while it is locked. It is never deleted: a process that waits for a deleted file and one
        that creates it again would both hold the lock. An old lock file does not lock anything.

        Raises:
            ConfigError: another process uses the folder, or the lock file cannot be written.
        """
        path = self.path.resolve()
        folder = path.parent / LOCKS
        lock = FileLock(folder / f"{path.name[:200]}.lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            raise ConfigError(
                "", f"{self.path} is in use by another process; wait for it or stop it"
            ) from None
        except OSError as error:
            raise ConfigError(
                "hydra.run.dir", f"cannot write {self.path}: {error.strerror or error}"
            ) from None
        try:
            yield
        finally:
            lock.release()

    # -- start ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the content of status.json; {} for a folder without a run."""
        try:
            return read_object(self / "status.json")
        except FileNotFoundError:
            return {}

    def provenance(self) -> dict[str, Any]:
        """Return the content of provenance.json; {} if it cannot be read."""
        try:
            return dict(json.loads((self / "provenance.json").read_text()))
        except (OSError, ValueError):
            return {}

    def set_status(self, status: str, reason: str = "", **more: Any) -> None:
        """Write status.json: running | done | failed | interrupted | planned, and the reason."""
        write_json(self / "status.json", {"status": status, "reason": reason, **more})

    def end(self, status: str, reason: str) -> None:
        """Write how a run ended that did not write it itself."""
        with suppress(OSError, ConfigError):  # the disk may be what failed
            if self.status().get("status") == "running":
                self.set_status(status, reason)

    def check_same(self, config: RunConfig) -> None:
        """Refuse to resume a run with another configuration.

        Raises:
            ConfigError: names the first keys that differ.
        """
        if not (self / "config.yaml").exists():
            return
        path = self / "identity.json"
        old = read_object(path) if path.exists() else {}
        new = identity(config)
        if old.get("version") != new["version"]:
            raise ConfigError(
                "resume",
                f"{self.path} contains a run of another version of this program; use resume=restart to move "
                "it aside, or another hydra.run.dir",
            )
        changed = [k for k in sorted(set(old) | set(new)) if old.get(k) != new.get(k)]
        if changed:
            shown = ", ".join(f"{k}: {old.get(k)} -> {new.get(k)}" for k in changed[:3])
            raise ConfigError(
                "resume",
                f"{self.path} contains a run with another configuration ({shown}); use "
                "resume=restart to move it aside, or another hydra.run.dir",
            )

    def move_aside(self) -> Path | None:
        """Rename a folder with a run to the first free `<name>.old<n>`; nothing is deleted."""
        if not any(
            (self / name).exists() for name in ("status.json", "ledger.jsonl", "config.yaml")
        ):
            return None
        number = 1
        while (target := self.path.with_name(f"{self.path.name}.old{number}")).exists():
            number += 1
        shutil.move(self.path, target)
        return target

    def begin(self, config: RunConfig, overrides: list[str], together: int = 1) -> None:
        """Create the folder and write the files that are known before training.

        Args:
            config: of the run.
            overrides: as given.
            together: number of runs in the group that it is trained in.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for name in (crash.ERROR_FILE, "summary.json"):  # of an earlier end: more will be released
            (self / name).unlink(missing_ok=True)
        write_atomic(self / "config.yaml", yaml.safe_dump(asdict(config), sort_keys=False).encode())
        write_json(self / "identity.json", identity(config))
        write_atomic(self / "overrides.txt", "".join(o + "\n" for o in overrides).encode())
        write_json(self / "provenance.json", provenance(config, together))

    # -- while running ----------------------------------------------------------------------

    def append(self, name: str, row: dict[str, Any]) -> None:
        """Append one line to a .jsonl file and flush it."""
        clean = {k: _finite_or_none(v) for k, v in row.items()}
        with (self / name).open("a") as file:
            file.write(json.dumps(clean) + "\n")
            file.flush()

    def save_checkpoint(self, content: dict[str, Any]) -> None:
        """Replace checkpoint.pt atomically. `content` has tensors and plain data."""
        path = self / "checkpoint.pt"
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint, or None. Raises `ConfigError`: it cannot be read."""
        path = self / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            return dict(torch.load(path, weights_only=True, map_location="cpu"))
        except Exception:  # damaged bytes can fail anywhere in torch
            raise ConfigError("resume", f"{path} is damaged; use resume=restart") from None

    def verify_ledger(self, saved: dict[str, Any] | None) -> None:
        """Raise ValueError unless the ledger is whole and has every line that a row or `saved` depends on."""
        marks = [("the checkpoint", Mark(*saved["ledger"]))] if saved else []
        for row in read_lines(self / "timing.jsonl"):
            if "ledger" not in row:
                raise ValueError("timing.jsonl is of another version of this program")
            marks.append((f"the row of round {row['round']}", Mark(*row["ledger"])))
        require_reaches(self / "ledger.jsonl", marks)

    def cut_metrics(self, rounds: int) -> None:
        """Remove the lines of rounds after `rounds`, which are going to be written again."""
        for name in ("metrics.jsonl", "timing.jsonl", "samples.jsonl"):
            path = self / name
            if not path.exists():
                continue
            kept = [
                line
                for line in path.read_bytes().rpartition(b"\n")[0].splitlines()
                if json.loads(line)["round"] <= rounds
            ]
            write_atomic(path, b"".join(line + b"\n" for line in kept))

    def seconds_so_far(self) -> float:
        """Return the wall seconds of earlier parts of this run, from timing.jsonl."""
        lines = read_lines(self / "timing.jsonl")
        return float(lines[-1]["wall_seconds"]) if lines else 0.0


@contextmanager
def never_left_running(dirs: Sequence[RunDir], private: bool = False) -> Iterator[None]:
    """Whatever ends the block, no folder keeps the status `running`.

    Args:
        dirs: the folders.
        private: as for `crash.describe`.

    Raises:
        SystemExit: the output has no reader any more.
    """
    try:
        yield
    except BaseException as error:
        closed = isinstance(error, SystemExit) and error.code == crash.PIPE
        gone = closed or crash.reader_gone(error)
        status, reason = "interrupted", crash.describe(error, private)
        if isinstance(error, KeyboardInterrupt):
            reason = signal.Signals(exit_code(error) - 128).name
        elif gone:
            reason = "the output has no reader any more"
        elif isinstance(error, ConfigError):
            status, reason = "failed", str(error)
        elif isinstance(error, Exception):
            status = "failed"
        if status == "interrupted":
            reason += "; rerun the same command to resume"
        for rundir in dirs:
            rundir.end(status, reason)
        if gone:
            raise SystemExit(crash.PIPE) from None
        raise


def _finite_or_none(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None; infinities stay."""
    return None if isinstance(value, float) and math.isnan(value) else value
