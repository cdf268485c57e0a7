"""Figures of papers hold no more than can be read, and are drawn from what is kept."""

from __future__ import annotations

import pytest

from privrl_bench.papers.items import Paper, PaperFigure, paper, papers
from privrl_bench.papers.pages.store import STORE
from privrl_bench.reporting.style import MOST_LINES


@pytest.mark.parametrize("path", papers().values(), ids=lambda p: p.stem)
@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_shipped_items_have_at_most_six_lines_a_panel(path, scale) -> None:
    described = Paper(path)
    for name in described.items():
        item = described.item(name, scale)
        if isinstance(item, PaperFigure):
            assert all(len(panel.lines) <= MOST_LINES for panel in item.panels)


@pytest.mark.slow
def test_figures_of_kept_tables(tmp_path) -> None:
    item = paper("gpope").item("fig1", "paper")
    assert item.draw_from_table((STORE / "gpope/fig1/table.md").read_text(), tmp_path)
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
    assert not PaperFigure("a title", "held").draw_from_table("", tmp_path)
