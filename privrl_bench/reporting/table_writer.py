"""The only writer of tables: head and lines of text as Markdown, LaTeX or CSV, and back."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ABSENT = "-"


def aligned(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[at]) for line in [head, *lines]) for at in range(len(head))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([_line(head, widths), rule, *(_line(line, widths) for line in lines)])


def compact(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table without padding, whose changes are small differences in git.

    >>> print(compact(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    rows = ["| " + " | ".join(line) + " |" for line in [head, *lines]]
    return "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]])


def parsed(text: str) -> list[dict[str, str]]:
    """Lines of the Markdown table in `text`, as column -> cell. A bar within a cell has no space around it.

    >>> parsed(compact(["a", "b"], [["1", ""]]))
    [{'a': '1', 'b': ''}]
    """
    rows = [
        [cell.strip() for cell in re.split(r"(?<=\s)\|(?=\s)", line.rstrip()[1:-1])]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def latex(head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A LaTeX tabular (booktabs), with notes below it. Columns of numbers are aligned right."""

    def row(texts: Sequence[str]) -> str:
        return " & ".join(map(_escaped, texts)) + r" \\"

    columns = zip(*lines, strict=True) if lines else [()] * len(head)
    kinds = "".join(
        "r" if all(re.fullmatch(r"-?[\d.,]+|inf|-", cell) for cell in column) else "l"
        for column in columns
    )
    rule = [r"\toprule", row(head), r"\midrule", *map(row, lines), r"\bottomrule"]
    below = [rf"\par {{\footnotesize {_escaped(note)}}}" for note in notes]
    begin = ["% needs the package booktabs", rf"\begin{{tabular}}{{{kinds}}}"]
    return "\n".join([*begin, *rule, r"\end{tabular}", *below, ""])


def csv_text(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """CSV with full precision; infinity is `inf`, an undefined number `nan`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(lines)
    return buffer.getvalue()


def write_table(
    folder: Path,
    markdown: str,
    shown: tuple[Sequence[str], Sequence[Sequence[str]]],
    exact: tuple[Sequence[str], Sequence[Sequence[Any]]] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write `table.md`, `table.tex` and `table.csv` into `folder`, creating it.

    Args:
        folder: Where to write.
        markdown: Text of `table.md`.
        shown: (head, lines) of `table.tex`.
        exact: (head, lines) of `table.csv`; None for those of `table.tex`.
        notes: below the table in `table.tex`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown, encoding="utf-8")
    (folder / "table.tex").write_text(latex(*shown, notes), encoding="utf-8")
    (folder / "table.csv").write_text(csv_text(*(exact or shown)), encoding="utf-8")


def short(value: float, digits: int = 4) -> str:
    """A number with few digits: `inf` for infinity, `-` for nan.

    >>> short(float("inf")), short(12.34567), short(1e-5)
    ('inf', '12.35', '1e-05')
    """
    if math.isnan(value):
        return ABSENT
    return f"{value:.{digits}g}" if abs(value) < 1e6 or math.isinf(value) else f"{value:.3g}"


def _escaped(text: str) -> str:
    r"""Text with LaTeX's special characters escaped, and numbers as mathematics.

    >>> print(_escaped("95 % of a_b ± 1"), _escaped("-106.0 (-112.4 to -95.7)"))
    95 \% of a\_b $\pm$ 1 $-$106.0 ($-$112.4 to $-$95.7)
    >>> print(_escaped("epsilon"), _escaped("inf"), _escaped("delta 1e-05"))
    $\varepsilon$ $\infty$ delta $10^{-5}$
    """
    if text in (known := {"epsilon": r"$\varepsilon$", "inf": r"$\infty$"}):
        return known[text]
    for sign in "&%#_$":
        text = text.replace(sign, f"\\{sign}")
    text = re.sub(r"\b1e-0*(\d+)", r"$10^{-\1}$", text)
    text = re.sub(r"\b([\d.]+)e-0*(\d+)", r"$\1 \\cdot 10^{-\2}$", text)
    return re.sub(r"(?<![\w.}{$^])-(?=\d)", "$-$", text).replace("±", r"$\pm$")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"
