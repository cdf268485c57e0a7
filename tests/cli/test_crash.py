"""What nobody expected ends with one line, a file and exit code 1; and a run folder has one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import exit_code

from privrl_bench.cli import main as privrl
from privrl_bench.cli import report
from privrl_bench.cli import train as cli
from privrl_bench.composition import hydra_compose as config
from privrl_bench.errors import ConfigError
from privrl_bench.training import crash
from privrl_bench.training import loop as training
from privrl_bench.training.folder import LOCKS, RunDir


def broken(*_: object, **__: object) -> None:
    raise IndexError("list index\nout of range")


def file_of(stderr: str) -> str:
    """The file that the one line on stderr names."""
    assert stderr.startswith("error: IndexError: list index out of range; traceback in ")
    assert stderr.count("\n") == 1
    text = Path(stderr.rpartition("traceback in ")[2].strip()).read_text()
    assert "def broken" not in text
    assert 'raise IndexError("list index\\nout of range")' in text
    assert "\ncommand   " in text
    assert "\nversion   privrl_bench " in text
    return text


@pytest.mark.parametrize("name", ["bench", "audit", "report"])
def test_a_defect_is_one_line_and_a_file(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(crash.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(config, "hydra_overrides", broken)
    monkeypatch.setattr(report, "load_runs", broken)
    command, *words = {
        "bench": (cli.main, "seed=1"),
        "audit": (privrl.main, "audit", "leaks"),
        "report": (privrl.main, "report", "."),
    }[name]
    assert exit_code(command, words) == 1
    file_of(capsys.readouterr().err)
    assert not (tmp_path / "outputs").exists()


def test_a_defect_in_training_leaves_its_traceback_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["log=none", "log.progress=false", "total_steps=4096", "eval.episodes=1"]
    monkeypatch.setattr(training.Trainer, "step", broken)
    with pytest.raises(SystemExit) as leave:
        cli.main(words)
    assert leave.value.code == 1
    (folder,) = (tmp_path / "outputs" / "dppg" / "cartpole").glob("eval*")
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert stderr.startswith("failed  IndexError: list index out of range; results: ")
    assert stderr.endswith(f"traceback in {folder / 'error.txt'}\n")
    assert "in broken" in (folder / "error.txt").read_text()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leave:
        cli.main(words)
    assert leave.value.code == 0
    assert not (folder / "error.txt").exists()


def test_a_defect_while_building_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from privrl_bench.training import runner as run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "make_plan", broken)
    with pytest.raises(SystemExit) as leave:
        cli.main(["log=none"])
    assert leave.value.code == 1
    file_of(capsys.readouterr().err)


ROOT = Path(__file__).parents[2]

# --- the lock of a run folder

HOLD = """
import sys
from pathlib import Path
from privrl_bench.errors import ConfigError
from privrl_bench.training.folder import RunDir
try:
    with RunDir(Path(sys.argv[1])).lock():
        print("in", flush=True)
        sys.stdin.readline()
except ConfigError as error:
    print(error, flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_run_folder_has_one_process(tmp_path: Path) -> None:
    """Also after one of them left: the file stays, so that all lock the same one."""
    folder = tmp_path / "outputs" / "run"
    first = start(folder)
    assert said(first) == "in"
    file = next((folder.parent / LOCKS).iterdir())
    inode = file.stat().st_ino
    assert not folder.exists()
    with pytest.raises(ConfigError, match="is in use by another process"), RunDir(folder).lock():
        raise AssertionError
    first.kill()  # and leaves its file
    first.wait()
    with RunDir(folder).lock():
        assert file.stat().st_ino == inode
    assert file.stat().st_ino == inode
    with RunDir(folder).lock(), RunDir(folder.with_name("other")).lock():
        pass


def without_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stdout be a pipe whose reader has gone, as with `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))


@pytest.mark.fast_every(5)
@pytest.mark.parametrize(
    ("main", "words"),
    [
        (cli.main, ["plan_only=true"]),
        (cli.main, ["-m", "plan_only=true", "seed=0,1"]),
        (cli.main, ["--help"]),
        (privrl.main, ["plan"]),
        (privrl.main, ["check-env", "cartpole", "--steps", "20"]),
    ],
)
def test_a_closed_pipe_is_a_quiet_exit(
    main: Callable[[list[str]], int],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    without_reader(monkeypatch)
    assert exit_code(main, words) == 141
    assert capsys.readouterr().err == ""
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.parent.name == LOCKS for path in files)  # which are never deleted


def test_a_closed_pipe_in_training_marks_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def step(*_: object) -> None:
        without_reader(monkeypatch)
        print("something", flush=True)

    monkeypatch.setattr(training.Trainer, "step", step)
    with pytest.raises(SystemExit) as leave:
        cli.main(["log=none", "log.progress=false", "total_steps=4096", "eval.episodes=1"])
    assert leave.value.code == 141
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.rglob("error*"))
    (status,) = tmp_path.rglob("status.json")
    assert "the output has no reader any more" in status.read_text()


def test_a_broken_pipe_elsewhere_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crash.tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def helper() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    assert crash.guarded(helper) == 1
    assert "BrokenPipeError" in capsys.readouterr().err
