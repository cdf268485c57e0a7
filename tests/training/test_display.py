"""What a sweep shows while it works."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest
from helpers import Clock, Terminal

from privrl_bench.composition.compose import compose
from privrl_bench.training.progress import Progress, ProgressState, SweepDisplay, sent_to
from privrl_bench.training.sweep import Job


def groups() -> list[list[Job]]:
    """Two groups of two seeds, with 1000 steps a job."""
    run = compose(["total_steps=10_000"])
    words = [[f"privacy.z={z}", f"seed={seed}"] for z in (1, 2) for seed in (0, 1)]
    jobs = [Job(n, run, Path(str(n)), one) for n, one in enumerate(words)]
    return [jobs[:2], jobs[2:]]


def test_lines_have_one_time_left_for_the_whole_sweep() -> None:
    clock, out = Clock(), io.StringIO()
    first, second = work = groups()
    display = SweepDisplay(work, True, stream=out, clock=clock)
    clock.now = 5.0
    display.update(first, ProgressState(5_000, 0, 20_000, 1.0, 2.0))
    assert out.getvalue() == ""  # too soon
    clock.now = 10.0
    display.update(first, ProgressState(10_000, 0, 20_000, 1.0, 2.0))
    # One of four jobs took 10 seconds.
    assert out.getvalue() == "sweep: 1 of 4 jobs (25 %), 0:00:30 left, 0.1 jobs/s\n"
    display.update(first, ProgressState(20_000, 0, 20_000, 1.0, 2.0))
    clock.now = 20.0
    display.end(first)
    assert out.getvalue().splitlines()[-1].startswith("sweep: 2 of 4 jobs (50 %)")
    display.end(second)
    display.close()
    assert out.getvalue().splitlines()[-1].startswith("sweep: 4 of 4 jobs (100 %)")
    assert "\x1b" not in out.getvalue()


def test_steps_of_an_earlier_command_make_no_sweep_fast() -> None:
    clock = Clock()
    first, second = work = groups()
    out = io.StringIO()
    display = SweepDisplay(work, True, stream=out, clock=clock)
    display.end(second)  # it was done before
    display.update(first, ProgressState(10_500, 10_000, 20_000, None, None))  # compilation
    clock.now = 10.0
    display.update(first, ProgressState(11_000, 10_000, 20_000, None, None))
    assert out.getvalue() == "sweep: 3 of 4 jobs (78 %), 0:03:00 left, 0.005 jobs/s\n"


def test_a_terminal_gets_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    first, _ = work = groups()
    with closing(SweepDisplay(work, True, stream=out)) as display:
        display.update(first, ProgressState(5_000, 0, 20_000, 487.65, 4.378))
        display.end(first)
    for part in ("sweep", "50%", "jobs/s", "left"):
        assert part in out.getvalue()


def test_a_run_sends_its_progress_in_place_of_showing_it() -> None:
    out, seen = io.StringIO(), list[ProgressState]()
    with sent_to(seen.append):
        progress = Progress(1000, True, "x", initial_steps=100, stream=out)
        progress.update(500, return_mean=1.5, epsilon=2.0)
        progress.close()
    assert seen == [ProgressState(500, 100, 1000, 1.5, 2.0)]
    assert out.getvalue() == ""
    Progress(1000, True, "x", stream=out).update(500, return_mean=1.0)
    assert len(seen) == 1
