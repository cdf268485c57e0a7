"""Every committed figure has a command, and is what it draws from today's tables and code."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_scripts import load

load("write_results")  # puts scripts/ on the path

from privrl_bench.papers.pages import figures, small_epsilon_figure, store  # noqa: E402


def test_every_figure_is_drawn_from_the_committed_tables() -> None:
    assert figures.problems() == [], "run: python -m privrl_bench.papers.pages.write_results"


def test_a_changed_figure_table_or_code_is_found_but_not_a_changed_comment(tmp_path) -> None:
    table, code = tmp_path / "runs.csv", tmp_path / "draw.py"
    table.write_text("a,b\n1,2\n")
    code.write_text('"""Draws."""\n\n\ndef draw():\n    """It."""\n    return 1\n')
    one = figures.Figure("x.svg", (table,), code, lambda out: out)

    def state() -> str:
        figures.source.cache_clear()
        figures.modules.cache_clear()
        return one.made_from()

    first = state()
    code.write_text('"""Draws it."""\n\n\n# so\ndef draw():\n    """Another."""\n    return 1\n')
    assert state() == first
    code.write_text("def draw():\n    return 2\n")
    assert state() != first
    code.write_text("def draw():\n    return 1\n")
    assert state() == first
    table.write_text("a,b\n1,3\n")
    assert state() != first


def test_a_stale_figure_and_one_without_a_command_are_named(monkeypatch) -> None:
    one = next(figures.figures())
    drawn, made_from = figures.recorded()[one.place]
    monkeypatch.setattr(figures, "figures", lambda: iter([one]))
    assert figures.stale({one.place: (drawn, made_from)}) == []
    for other in ((drawn, "0" * 16), ("0" * 16, made_from)):
        monkeypatch.setattr(figures, "recorded", lambda other=other: {one.place: other})
        assert figures.problems()[0] == f"{one.place}: not drawn from today's tables and code"
    assert "examples/insulin/results/insulin.svg" in figures.without_command()


def test_figures_have_the_same_texts_each_time_and_no_date(tmp_path) -> None:
    """Coordinates differ by hundredths of a point, which depend on what the process drew before."""
    one = next(one for one in figures.figures() if one.place.endswith("speed.svg"))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        one.draw(tmp_path / folder)
    first, second = ((tmp_path / folder / "speed.svg").read_bytes() for folder in ("a", "b"))
    texts = [re.findall(rb"<!-- (.*?) -->", file) for file in (first, second)]
    assert texts[0] == texts[1] != []
    assert b"<dc:date>" not in first


def test_stale_figures_are_drawn_and_recorded(tmp_path, monkeypatch) -> None:
    (tmp_path / "x.svg").write_text("old")
    code = shutil.copy(Path(__file__), tmp_path / "code.py")
    one = figures.Figure("x.svg", (), Path(code), lambda out: out / "x.svg")
    made = replace(one, draw=lambda out: _written(out / "x.svg"))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORD", tmp_path / "figures.csv")
    monkeypatch.setattr(figures, "figures", lambda: iter([made]))
    figures.draw()
    assert (tmp_path / "x.svg").read_text() == "new"
    assert figures.stale(figures.recorded()) == []


def _written(path: Path) -> Path:
    path.write_text("new")
    return path


def test_ppo_in_the_first_figure_has_the_steps_of_the_private_runs() -> None:
    runs = [run for run in store.stored("dppg/gap") if (run.env, run.algo) == ("pendulum", "ppo")]
    assert {round(run.summary["steps"], -6) for run in runs} == {2_000_000, 16_000_000}
    long = [run.final_value for run in runs if run.summary["steps"] > 1e7]
    assert sorted(small_epsilon_figure.of_ppo("pendulum")) == sorted(long)
    (mean,) = {round(sum(x) / len(x)) for x in [small_epsilon_figure.of_ppo("halfcheetah")]}
    assert mean == pytest.approx(3704, abs=1)
