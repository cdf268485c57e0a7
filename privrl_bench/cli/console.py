"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.training.progress import coloured


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout as aligned columns, never wrapped.

    Args:
        head: names of the columns.
        rows: cells of each row, as many as there are columns.

    >>> print_table(("seed", "return"), [("0", "12.3"), ("10", "-")])
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
    print("\n".join(coloured(line.rstrip()) for line in padded), flush=True)
