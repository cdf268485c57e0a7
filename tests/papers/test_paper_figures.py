"""Figures of papers hold no more than can be read, and are drawn from what is kept."""

from __future__ import annotations

import pytest

from privrl_bench.papers.items import Paper, PaperFigure, paper, papers
from privrl_bench.papers.pages.store import STORE
from privrl_bench.papers.paper_item import Line, Panel
from privrl_bench.reporting.style import MOST_LINES


@pytest.mark.parametrize("path", papers().values(), ids=lambda p: p.stem)
@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_shipped_items_have_at_most_six_lines_a_panel(path, scale) -> None:
    described = Paper(path)
    for name in described.items():
        item = described.item(name, scale)
        if isinstance(item, PaperFigure):
            assert not item.not_drawn(), name
            assert all(len(panel.lines) <= MOST_LINES for panel in item.panels)


def test_a_figure_that_cannot_be_read_is_not_drawn(tmp_path, capsys) -> None:
    lines = [Line(f"line {k}", True, [k]) for k in range(MOST_LINES + 1)]
    picture = PaperFigure("A figure", "curves", [Panel("task", lines)])
    (reason, *_) = picture.write(tmp_path, {}, {})
    assert "7 lines, at most 6 can be read" in reason
    assert reason.removeprefix("<p>").removesuffix("</p>") in capsys.readouterr().out
    assert not list(tmp_path.glob("figure.*"))


@pytest.mark.slow
def test_figures_of_kept_tables(tmp_path) -> None:
    for known, name in (("gpope", "fig1"), ("dppg", "fig1")):
        item = paper(known).item(name, "paper")
        assert item.draw_from_table((STORE / known / name / "table.md").read_text(), tmp_path)
        assert (tmp_path / "figure.svg").stat().st_size > 10_000
    assert not PaperFigure("a title", "held").draw_from_table("", tmp_path)
