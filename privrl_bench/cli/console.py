"""Tables on the terminal. Where stdout is no terminal they are plain text: aligned, never wrapped."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
) -> None:
    """Print a table on stdout; on a terminal, long cells are wrapped.

    Args:
        head: names of the columns.
        rows: cells of each row, as many as there are columns.
        styles: rich's style of each row, on a terminal only; none: plain.
    """
    if not sys.stdout.isatty():
        print(plain(head, rows), flush=True)
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(escape(name), overflow="fold")
    for at, row in enumerate(rows):
        table.add_row(*map(escape, row), style=styles[at] if styles else None)
    Console(highlight=False).print(table)


def plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as aligned columns.

    >>> print(plain(("seed", "return"), [("0", "12.3"), ("10", "-")]))
    seed  return
    0     12.3
    10    -
    """
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(line.rstrip() for line in padded)
