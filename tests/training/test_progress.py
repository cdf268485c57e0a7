"""What a run shows while it works."""

import io

import pytest
from helpers import Clock, Terminal

from privrl_bench.training.progress import Progress, duration


def test_plain_lines_say_speed_return_epsilon_and_time_left():
    clock, out = Clock(), io.StringIO()
    progress = Progress(1000, True, "dppg hopper", stream=out, clock=clock)
    clock.now = 2.0
    progress.update(100)  # too soon, nothing new
    assert out.getvalue() == ""
    clock.now = 3.0
    progress.update(200, return_mean=12.34, epsilon=4.5)
    line = "dppg hopper: 200 of 1,000 steps (20 %), 0:00:08 left, 100 steps/s, return 12.34, epsilon 4.5\n"
    assert out.getvalue() == line
    assert "\x1b" not in line


def test_a_run_without_an_environment_counts_rounds():
    clock, out = Clock(), io.StringIO()
    progress = Progress(1000, True, "gpope chain", unit="rounds", each=100, stream=out, clock=clock)
    clock.now = 2.0  # a first round that waits for compilation tells nothing about the others
    progress.update(400, return_mean=0.5)
    assert out.getvalue() == "gpope chain: 4 of 10 rounds (40 %), return 0.5\n"
    clock.now = 6.0
    progress.update(500, return_mean=0.5)
    assert "5 of 10 rounds (50 %), 0:00:20 left, 0.25 rounds/s" in out.getvalue()
    assert "steps" not in out.getvalue()


def test_a_resumed_run_does_not_look_fast():
    clock, out = Clock(), io.StringIO()
    progress = Progress(1000, True, "x", initial_steps=900, stream=out, clock=clock)
    clock.now = 10.0
    progress.update(950)
    clock.now = 20.0
    progress.update(975)
    assert "(98 %), 0:00:10 left, 2 steps/s" in out.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = Progress(1000, True, "dppg", stream=out)
    progress.update(500, return_mean=1.5, epsilon=2.0)
    progress.close()
    assert "50%" in out.getvalue()
    assert "return 1.5" in out.getvalue()


def test_a_terminal_without_control_codes_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    progress = Progress(1000, True, "dppg", stream=out)
    progress.update(500, return_mean=1.5, epsilon=2.0)
    progress.close()
    assert "500 of 1,000 steps (50 %)" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_bar_shows_its_last_state_and_keeps_stdout(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = Progress(1000, True, "dppg", stream=out)
    progress.update(400)
    progress.update(1000)  # too soon to be drawn
    print("a result, for a file")
    progress.note("[a note]")
    progress.close()
    assert "100%" in out.getvalue()
    assert "[a note]" in out.getvalue()
    assert capsys.readouterr().out == "a result, for a file\n"


def test_off_means_silent_but_notes_are_kept():
    out = io.StringIO()
    progress = Progress(1000, False, "x", stream=out)
    progress.update(500, return_mean=1.0)
    progress.close()
    assert out.getvalue() == ""
    progress.note("look")
    assert out.getvalue() == "look\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "0:00:05"), (65, "0:01:05"), (90_000, "1 day, 1:00:00"), (float("inf"), "?")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
