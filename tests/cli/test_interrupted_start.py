"""Ctrl-C while a command starts: one line, exit code 130, and no run that seems to be running.

The signal goes to all processes of the command, as that of a terminal does. When a state is seen, the command
may be past it; every outcome must be right.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = (
    *("algo=dppg", "env=cartpole", "privacy.z=1", "total_steps=1_000_000"),
    *("log=none", "log.progress=false", "log.plot=false"),
)
LIMIT = 120  # seconds until a state must have been seen, and for the end
Seen = Callable[[int, Path], bool]


def maps(name: str) -> Seen:
    """The process has loaded a library."""

    def seen(pid: int, _: Path) -> bool:
        return name in Path(f"/proc/{pid}/maps").read_text()

    return seen


def file(name: str) -> Seen:
    """A file exists below the working directory, where other processes make and remove folders meanwhile."""
    return lambda _, here: any(name in files for _, _, files in os.walk(here))


def children(count: int) -> Seen:
    """So many processes were started, one of which keeps track of shared resources."""

    def seen(pid: int, _: Path) -> bool:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return len(found) >= count

    return seen


def said(text: str) -> Seen:
    return lambda _, here: text in (here / "log").read_text()


STATES: dict[str, tuple[tuple[str, ...], Seen]] = {
    "first imports": ((), maps("_yaml")),
    "importing torch": ((), maps("libtorch")),
    "begun": ((), file("status.json")),
    "compiling": ((), said("compiling kernels")),
    "starting workers": (("hardware.workers=2",), children(2)),
    "workers compile": (("hardware.workers=2",), said("compiling kernels")),
    "starting a sweep": (("-m", "seed=0,1", "hardware.workers=2"), children(2)),
    "sweep": (("-m", "seed=0,1", "hardware.workers=2"), file("status.json")),
}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the states from /proc")
@pytest.mark.parametrize(
    "state",
    [pytest.param(x, marks=() if x == "importing torch" else pytest.mark.slow) for x in STATES],
)
def test_ctrl_c_while_starting_is_one_line(state: str, tmp_path: Path) -> None:
    words, seen = STATES[state]
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")} if "compil" in state else {}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "privrl_bench", *RUN, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | cache,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + LIMIT
            while not seen(process.pid, tmp_path):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < end, "the state was not seen"
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(LIMIT)
        finally:
            process.poll() is None and os.killpg(process.pid, signal.SIGKILL)
    text = (tmp_path / "log").read_text()
    assert code == 130, text
    lines = [line for line in text.splitlines() if not line.startswith(("  note", "sweep "))]
    interrupted = [line for line in lines if line.startswith("interrupted")]
    assert lines == interrupted, text
    if "-m" not in words:
        assert len(lines) == 1, text
    statuses = [
        json.loads(p.read_text())["status"] for p in tmp_path.glob("outputs/**/status.json")
    ]
    assert set(statuses) <= {"interrupted"}
