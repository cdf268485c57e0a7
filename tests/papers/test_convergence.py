"""When a task counts as solved, against counting by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrl_bench.papers.convergence import draw_boxes, draw_held, held, kept, solved_after, table
from privrl_bench.papers.paper_item import Line
from privrl_bench.reporting.runs import Run

FACTS = {"window": 3, "target": 10.0, "held": 20.0, "episodes": 6}


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 6), st.integers(0, 20))
def test_the_first_window_that_is_good_enough(returns, window, target) -> None:
    expected = None
    for k in range(window, len(returns) + 1):
        if sum(returns[k - window : k]) >= target * window:
            expected = k
            break
    assert solved_after(returns, window, target) == expected


def test_returns_are_held_after_the_solution() -> None:
    assert held([1, 2, 3, 4], 6, 4, 9).tolist() == [1, 2, 3, 4, 9, 9]
    assert held([1, 2, 3, 4], 6, 2, 9).tolist() == [1, 2, 9, 9, 9, 9]
    assert held([1, 2, 3, 4], 3, None, 9).tolist() == [1, 2, 3]
    assert held([1, 2, 3, 4], 3, 4, 9).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="not solved"):
        held([1, 2], 3, None, 9)


def a_run(tmp_path, returns) -> Run:
    rows = [{"steps": k + 1, "eval/return_mean": x} for k, x in enumerate(returns)]
    summary = {"epsilon": 8.0, "guarantee": {"status": "formal"}}
    return Run(tmp_path, metrics=rows, summary=summary)


class Setting(str):
    """Stands for the settings of a line's runs."""

    env = "cartpole"


def test_pictures_and_numbers(tmp_path) -> None:
    runs = {
        "a": [a_run(tmp_path, [9, 10, 11]), a_run(tmp_path, [0, 0, 0, 12, 12, 12])],
        "b": [a_run(tmp_path, [1, 2, 3, 4, 5, 6])],
    }
    lines: list[Line] = [Line(k, True, [Setting(k)]) for k in "abc"]  # type: ignore[list-item]
    panels = [SimpleNamespace(label="task", lines=lines)]
    for extra in ({}, {"statistic": "median", "shown": 4}):
        picture = SimpleNamespace(panels=panels, facts=FACTS | extra, kind="held")
        shown = kept(picture, runs)
        draw_held(picture, shown, tmp_path / "held.png")
        draw_boxes(picture, shown, tmp_path / "boxes.png")
        for name in ("held.png", "held.svg", "boxes.png", "boxes.svg"):
            assert (tmp_path / name).stat().st_size > 1000
    head, found = table(picture, kept(picture, runs))
    by_name = [dict(zip(head, line, strict=True)) for line in found]
    assert [one["line"] for one in by_name] == ["a", "b"]
    assert [one["solved"] for one in by_name] == ["2", "0"]
    assert [one["mean episode"] for one in by_name] == [f"{np.mean([3, 6]):.0f}", "6"]
    assert by_name[1]["last 100 episodes"].startswith("4 ±")  # the mean of 1 to 6 is 3.5
