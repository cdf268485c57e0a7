"""The table of searches, from outputs/paper/dppg/tuning/searches.csv (`scripts/tuning_table.py`)."""

from __future__ import annotations

from privrl_bench.papers.pages.store import BLOCKS, STORE


def searches() -> str:
    """The committed table."""
    return (STORE / "dppg" / "tuning" / "table.md").read_text().strip()


BLOCKS |= {"dppg/tuning": searches}
