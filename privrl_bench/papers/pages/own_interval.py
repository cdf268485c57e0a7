"""Verdicts on numbers that a paper prints without an interval: ours judges, for the same statistic."""

from __future__ import annotations

import re

LESS, NONE = "less", "none"
_INTERVAL = re.compile(r"(-?[\d.]+) to (-?[\d.]+)")


def interval_of(text: str) -> tuple[float, float] | None:
    """Ends of an interval in a table, None if there is none.

    >>> interval_of("105 to 221"), interval_of("-")
    ((105.0, 221.0), None)
    """
    found = _INTERVAL.fullmatch(text)
    return (float(found[1]), float(found[2])) if found else None


def by_our_interval(paper: float, ours: tuple[float, float], better: str) -> str:
    """Judge the number of a paper by our interval for the same statistic.

    Args:
        paper: The number that is printed.
        ours: Ends of our interval, which belong to it.
        better: `less`: a smaller number is better. `none`: no direction is, so that all outside is below.

    Returns:
        inside: the number is in our interval. above: ours is better by more than the interval. below: worse.

    Raises:
        ValueError: Another word for `better`.
    """
    if better not in (LESS, NONE):
        raise ValueError(f"better: {better}, must be {LESS} or {NONE}")
    low, high = ours
    if low <= paper <= high:
        return "inside"
    return "above" if better == LESS and paper > high else "below"
