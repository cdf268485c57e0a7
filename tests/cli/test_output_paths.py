"""Every path that a command writes to is checked first: one line, exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import exit_code

from privrl_bench.cli import main as privrl
from privrl_bench.cli import train

SMALL = "log=none total_steps=5000"
TUNE = f"tune algo.lr=uniform(1e-3,1e-2) tune.score=public tune.runs=fixed(2) {SMALL}"

# command with RUN (a finished run) and PATH -> (the argument in the message, the ending of PATH)
FILES = {
    "play RUN --video PATH": ("--video", ".gif"),
    "export RUN --to torchscript --out PATH": ("--out", ".ts"),
    f"audit leaks {SMALL} --json PATH": ("--json", ".json"),
}
FOLDERS = {
    f"privrl-bench {SMALL} hydra.run.dir=PATH": "hydra.run.dir",
    f"privrl-bench -m {SMALL} seed=1,2 hydra.sweep.dir=PATH": "hydra.sweep.dir",
    f"{TUNE} hydra.run.dir=PATH": "hydra.run.dir",
    f"audit epsilon {SMALL} --folder PATH": "--folder",
    "report RUN --out PATH": "--out",
    "reproduce dppg-table1 --scale smoke --out PATH": "--out",
}
# Commands that write below `outputs` -> how the message begins.
IN_OUTPUTS = {
    f"privrl-bench {SMALL}": "hydra.run.dir: cannot make the folder outputs/dppg/cartpole",
    f"privrl-bench -m {SMALL} seed=1,2": "hydra.sweep.dir: cannot ",
    TUNE: "hydra.run.dir: cannot ",
    f"audit epsilon {SMALL}": "--folder: cannot ",
    "collect env=chain policy=uniform episodes=20": "cannot ",
    "collect env=pendulum runs=1 steps=400": "cannot ",
    "reproduce dppg-table1 --scale smoke": "--out: cannot ",
}


def code_of(line: list[str]) -> int:
    """Exit code of a command line, run in this process."""
    if line[0] == "privrl-bench":
        return exit_code(train.main, line[1:])
    return exit_code(privrl.main, line)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder for each ending, and a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    for _, ending in FILES.values():
        (tmp_path / f"folder{ending}").mkdir()
        (tmp_path / f"loop{ending}").symlink_to(f"back{ending}")
        (tmp_path / f"back{ending}").symlink_to(f"loop{ending}")
        (tmp_path / f"link{ending}").symlink_to("none/a")
    (tmp_path / "file").write_text("mine")
    return tmp_path


def refused(line: str, path: str, run: str, here: Path, capsys) -> str:
    """The line after `error: ` of a command, which has written nothing."""
    before = sorted(here.rglob("*"))
    words = [
        {"RUN": run, "PATH": path}.get(word, word.replace("=PATH", f"={path}"))
        for word in line.split()
    ]
    assert code_of(words) == 2
    found = capsys.readouterr().err
    assert found.startswith("error: ")
    assert found.count("\n") == 1
    assert sorted(here.rglob("*")) == before
    assert (here / "file").read_text() == "mine"
    return found.removeprefix("error: ")


@pytest.mark.parametrize("line", FILES)
def test_a_file_that_cannot_be_written(line: str, here: Path, trained, capsys) -> None:
    key, ending = FILES[line]
    run = str(trained("categorical")) if "RUN" in line else ""
    cases = {
        f"folder{ending}": f"cannot write folder{ending}: Is a directory",
        f"none/a{ending}": "there is no folder none",
        f"file/a{ending}": f"cannot write file/a{ending}: Not a directory",
        f"/proc/a{ending}": f"cannot write /proc/a{ending}: ",
        f"loop{ending}": f"cannot write loop{ending}: Too many levels of symbolic links",
        f"link{ending}": f"cannot write link{ending}: No such file",
        "": "must not be empty",
    }
    for path, problem in cases.items():
        assert refused(line, path, run, here, capsys).startswith(f"{key}: {problem}")


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("line", FOLDERS)
def test_a_folder_that_cannot_be_written(line: str, here: Path, trained, capsys) -> None:
    run = str(trained("categorical")) if "RUN" in line else ""
    for path in ("file", "file/below", "/proc/below"):
        found = refused(line, path, run, here, capsys)
        assert found.startswith(f"{FOLDERS[line]}: cannot ")
        assert path in found
    found = refused(line, "", run, here, capsys)
    assert found.startswith(f"{FOLDERS[line]}: must not be empty")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("line", IN_OUTPUTS)
def test_outputs_is_a_file(line: str, here: Path, capsys) -> None:
    (here / "outputs").write_text("mine")
    found = refused(line, "", "", here, capsys)
    assert found.startswith(IN_OUTPUTS[line])
    assert found.endswith(": Not a directory\n")
    assert (here / "outputs").read_text() == "mine"


def test_the_folder_of_datasets_is_a_file(here: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here / "file"))
    found = refused("collect env=chain policy=uniform episodes=20", "", "", here, capsys)
    assert found.startswith("MINARI_DATASETS_PATH: cannot write ")


def test_a_video_of_another_kind(here: Path, trained, capsys) -> None:
    line = "play RUN --video PATH"
    found = refused(line, "a.avi", str(trained("categorical")), here, capsys)
    assert found == "--video: must end with .gif or .mp4, got a.avi\n"
