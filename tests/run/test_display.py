"""What a sweep shows while it works."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.run.progress import Progress, ProgressState, SweepDisplay, sent_to
from privrl_bench.run.sweep import Job, Outcome


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def groups() -> list[list[Job]]:
    """Two groups of two seeds, with 1000 steps a job."""
    run = compose(["total_steps=10_000"])
    words = [[f"privacy.z={z}", f"seed={seed}"] for z in (1, 2) for seed in (0, 1)]
    jobs = [Job(n, run, Path(str(n)), one) for n, one in enumerate(words)]
    return [jobs[:2], jobs[2:]]


def done(group: list[Job], status: str = "done") -> list[Outcome]:
    return [Outcome(status, number=job.number) for job in group]


def test_lines_have_one_time_left_for_the_whole_sweep() -> None:
    clock, out = Clock(), io.StringIO()
    first, second = work = groups()
    display = SweepDisplay(work, True, stream=out, clock=clock)
    display.begin(first)
    clock.now = 5.0
    display.update(first, ProgressState(5_000, 0, 20_000, 1.0, 2.0))
    assert out.getvalue() == ""  # too soon
    clock.now = 10.0
    display.update(first, ProgressState(10_000, 0, 20_000, 1.0, 2.0))
    # 1 of 4 jobs took 10 seconds.
    assert out.getvalue() == "sweep   0 of 4 jobs ended, 25 % done, 1,000 steps/s, 30 s left\n"
    display.update(first, ProgressState(20_000, 0, 20_000, 1.0, 2.0))
    display.end(first, done(first))
    assert "2 of 4 jobs ended, 50 % done" in out.getvalue().splitlines()[-1]
    display.begin(second)
    display.end(second, done(second, "skipped"))
    display.close()
    assert out.getvalue().splitlines()[-1] == "sweep   4 of 4 jobs ended"
    assert "\x1b" not in out.getvalue()


def test_steps_of_an_earlier_command_make_no_sweep_fast() -> None:
    clock = Clock()
    first, second = work = groups()
    display = SweepDisplay(work, True, stream=io.StringIO(), clock=clock)
    display.end(second, done(second, "skipped"))
    clock.now = 10.0
    display.update(first, ProgressState(11_000, 10_000, 20_000, None, None))
    assert "55 % done, 100 steps/s, 1 min 30 s left" in display.summary()


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    first, second = work = groups()
    with closing(SweepDisplay(work, True, stream=out)) as display:
        assert display.live
        display.begin(first)
        display.update(first, ProgressState(5_000, 0, 20_000, 487.65, 4.378))
        display.end(first, [*done(first[:1]), *done(first[1:], "failed")])
        display.begin(second)
    last = out.getvalue().rpartition("sweep ")[2]
    for part in ("z=1", "1 done, 1 failed", "2 of 4 jobs", "z=2", "left"):
        assert part in last
    assert not display.live


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
