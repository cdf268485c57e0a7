"""The table of searches, which `scripts/tuning_table.py` at commit 509cd63 wrote from searches.csv."""

from __future__ import annotations

from privrl_bench.papers.pages.store import BLOCKS, STORE


def searches() -> str:
    """The committed table."""
    return (STORE / "dppg" / "tuning" / "table.md").read_text().strip()


BLOCKS |= {"dppg/tuning": searches}
