"""Figures of runs that differ in the value of one key: final return against it."""

from __future__ import annotations

from pathlib import Path

from privrl_bench.papers.paper_item import Line, Panels
from privrl_bench.papers.paper_table import epsilon_of, mean_of, status_of
from privrl_bench.reporting.run_figures import draw_points, drawn_panels
from privrl_bench.reporting.runs import Run, Runs


def _points(line: Line, key: str, runs: Runs) -> list[tuple[float, list[Run]]]:
    """(value of the key, finished runs) of every point of a line, in the order of values."""
    found = []
    for setting in line.settings:
        words = dict(word.split("=", 1) for word in setting.words)
        if runs.get(setting):
            found.append((float(words[key]), list(runs[setting])))
    return sorted(found, key=lambda one: one[0])


def swept_table(picture: Panels, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """(head, lines): final return for each value."""
    key, lines = picture.facts["key"], []
    for panel in picture.panels:
        for line in panel.lines:
            for value, some in _points(line, key, runs):
                own = [f"{value:g}", str(len(some)), mean_of(some), epsilon_of(some)]
                lines.append([panel.label, line.label, *own, status_of(some)])
    return ["panel", "line", key, "seeds", "return", "epsilon", "status"], lines


def draw_swept(picture: Panels, runs: Runs, path: Path) -> None:
    """Mean final return against the value of the key `facts["key"]`, with 95 % intervals."""
    key = picture.facts["key"]
    for axes, drawn in drawn_panels(picture, runs, path):
        for one in drawn:
            draw_points(axes, one, _points(one.line, key, runs))
        axes.set_xlabel(key)
        axes.set_ylabel("final return")
