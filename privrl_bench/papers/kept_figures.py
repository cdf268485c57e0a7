"""Figures from the numbers of their table: of runs that were not kept, and of computations of minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privrl_bench.papers import analytic_figures, datasize, relations
from privrl_bench.papers.paper_figure import PaperFigure
from privrl_bench.papers.paper_item import Item
from privrl_bench.reporting.runs import number
from privrl_bench.reporting.style import DASHES, LineMark, figure, legend, looks
from privrl_bench.reporting.table_writer import parsed


def draw_from_table(item: Item, folder: Path, out: Path) -> bool:
    """Draw `figure.svg` into `out` from `folder`/table.md. Returns whether its kind has the numbers for that.

    Errors of policy evaluation are drawn as from runs. Of regret the table has the final one only.
    """
    table = folder / "table.md"
    if not table.exists() or not isinstance(item, PaperFigure):
        return False
    rows, path = parsed(table.read_text()), out / "figure.png"
    if item.kind == "datasize":
        datasize.draw_kept(item, rows, path)
    elif item.kind == "regret":
        draw_final_regret(rows, path)
    elif item.kind == "relations":
        relations.draw_kept(rows, path)
    elif item.kind == "rounds":
        analytic_figures.draw_kept(item, rows, path)
    else:
        return False
    path.unlink()  # the SVG is the smaller one
    return True


def draw_final_regret(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Final regret of each line of a table: mean with its interval, and median."""
    names = list(dict.fromkeys(row["panel"] for row in rows))
    with figure(path, len(names), vector=True, row_height=2.4) as places:
        for axes, name in zip(places, names, strict=True):
            own = sorted((r for r in rows if r["panel"] == name), key=lambda r: _method(r["line"]))
            marks = [LineMark(_method(r["line"]), number(r["epsilon"]), r["status"]) for r in own]
            for at, (row, look) in enumerate(zip(own, looks(marks), strict=True)):
                mean, half = (float(x) for x in row["regret"].split(" ± "))
                drawn: Any = {"color": look.colour}
                axes.plot([mean - half, mean + half], [at, at], look.dash, **drawn)
                axes.plot([mean], [at], look.marker, **drawn)
                axes.plot([float(row["median regret"])], [at], "|", markersize=6, **drawn)
            first = axes is places[0]
            axes.set_yticks(range(len(own)), [row["line"] if first else "" for row in own])
            axes.invert_yaxis()
            axes.set_xlim(left=0)
            axes.set_xlabel("final regret")
            axes.set_title(name)
        for status in ("formal", "heuristic", "none"):
            shown = "not private" if status == "none" else status
            places[0].plot([], [], color="0.3", linestyle=DASHES[status], label=f"mean, {shown}")
        places[0].plot([], [], "|", markersize=6, color="0.3", label="median")
        legend(places)


def _method(line: str) -> str:
    """Algorithm of a line, from its label: "UCB-VI, tree, epsilon 1" is ucbvi."""
    name = line.partition(",")[0].partition(" ")[0].lower()
    return name.replace("ucb-vi", "ucbvi").replace("-", "_")
