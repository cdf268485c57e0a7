"""Committed figures that are stale or have no command are found; `write_results --check` looks for them."""

from __future__ import annotations

import re
from pathlib import Path

from privrl_bench.papers.pages import figures


def test_a_changed_table_is_found(tmp_path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("a,b\n1,2\n")
    one = figures.Figure("x.svg", (table,), lambda out: out)
    first = one.made_from()
    table.write_text("a,b\n1,3\n")
    assert one.made_from() != first


def test_a_stale_figure_and_one_without_a_command_are_named(monkeypatch) -> None:
    one = next(figures.figures())
    drawn, made_from = figures.recorded()[one.place]
    monkeypatch.setattr(figures, "figures", lambda: iter([one]))
    assert figures.stale({one.place: (drawn, made_from)}) == []
    for other in ((drawn, "0" * 16), ("0" * 16, made_from)):
        monkeypatch.setattr(figures, "recorded", lambda other=other: {one.place: other})
        assert figures.problems()[0] == f"{one.place}: not drawn from today's tables"
    assert "examples/insulin/results/insulin.svg" in figures.without_command()


def test_figures_have_the_same_texts_each_time_and_no_date(tmp_path) -> None:
    """Coordinates differ by hundredths of a point, which depend on what the process drew before."""
    one = next(one for one in figures.figures() if one.place.endswith("hopper_curve.svg"))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        one.draw(tmp_path / folder)
    first, second = ((tmp_path / folder / "hopper_curve.svg").read_bytes() for folder in ("a", "b"))
    texts = [re.findall(rb"<!-- (.*?) -->", file) for file in (first, second)]
    assert texts[0] == texts[1] != []
    assert b"<dc:date>" not in first


def test_stale_figures_are_drawn_and_recorded(tmp_path, monkeypatch) -> None:
    (tmp_path / "x.svg").write_text("old")
    made = figures.Figure("x.svg", (), lambda out: _written(out / "x.svg"))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORD", tmp_path / "figures.csv")
    monkeypatch.setattr(figures, "figures", lambda: iter([made]))
    figures.draw()
    assert (tmp_path / "x.svg").read_text() == "new"
    assert figures.stale(figures.recorded()) == []
    for name in ("x.svg", "table.md"):
        (tmp_path / name).write_text("old")
    figures.draw(everything=True)
    assert (tmp_path / "x.svg").read_text() == (tmp_path / "table.md").read_text() == "new"


def _written(path: Path) -> Path:
    path.write_text("new")
    path.with_name("table.md").write_text("new")
    return path
