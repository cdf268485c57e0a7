"""Blocks of docs/results/state.md: every table and figure of the papers beside what is in the results store.

Rows are those of state_data.yaml. Numbers are those of privrl_bench/papers/*.yaml and outputs/paper/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.papers.items import finished_runs
from privrl_bench.papers.items import paper as described
from privrl_bench.papers.pages.kept_tables import committed
from privrl_bench.papers.pages.store import BLOCKS, STORE, TASKS, without_repeats
from privrl_bench.papers.paper_item import NOT_COMPARABLE, PaperTable, comparison
from privrl_bench.reporting.table_writer import ABSENT, compact, parsed

PAPERS = {"dppg": "DPPG", "primorl": "PriMORL", "dp-rl": "REINFORCE and DQN", "gpope": "GPOPE"}
GOOD = ("inside", "above")
JUDGED = (*GOOD, "below")
OTHER, NOT_RUN, NO_RESULT = NOT_COMPARABLE, "not run", "no result"
LESS, NONE = "less", "none"
_MEAN = re.compile(r"(-?[\d.]+) ± ([\d.]+)")  # and half of its interval
CLAIMED = ("shown", "in part", "not shown", NOT_RUN)
Entries = Mapping[str, Any]  # rows of a paper: name of a table or figure -> what is said of it


@dataclass(frozen=True)
class Number:
    """A number of a paper beside ours.

    Attributes:
        name: Table or figure.
        cell: Which number of it.
        ours: As the paper does it, and with a formal guarantee.
    """

    name: str
    cell: str
    paper: str
    ours: tuple[str, str]
    seeds: str
    verdict: str


@cache
def entries(paper: str) -> Entries:
    """Rows of a paper in privrl_bench/papers/pages/state_data.yaml."""
    text = Path(__file__).with_name("state_data.yaml").read_text(encoding="utf-8")
    found: dict[str, Entries] = yaml.safe_load(text)
    return found[paper]


# --- numbers


def numbers(paper: str, rows: Entries) -> list[Number]:
    """Every number of a paper, in the order of its rows."""
    stated = described(paper).content.get("stated", {})
    found: list[Number] = []
    for name, row in rows.items():
        if "item" in row:
            found += _of_table(paper, name, row["item"])
        found += [_stated(paper, name, one) for one in stated.get(name, [])]
    return found


def _of_table(paper: str, name: str, item: str) -> list[Number]:
    """Cells of a table."""
    table = described(paper).item(item, "paper")
    assert isinstance(table, PaperTable)
    head, lines = comparison(table, finished_runs(STORE / paper / item, table), {})
    found = []
    for line in (dict(zip(head, one, strict=True)) for one in lines):
        cell, verdict = f"{TASKS[line['env']]}, {line['method']}", line["verdict"]
        ours = (line["as the paper does it"], line["formal"])
        verdict = OTHER if verdict == ABSENT else verdict.replace("no run", NOT_RUN)
        found.append(Number(name, cell, line["paper"], ours, line["seeds"], verdict))
    return found


def _stated(paper: str, name: str, stated: Mapping[str, Any]) -> Number:
    """A number without an interval: ours judges."""
    (line,) = committed(f"{paper}/{stated['item']}", **stated["where"])
    interval = line[stated["interval"]]
    verdict = by_our_interval(float(stated["paper"]), interval_of(interval), stated["better"])
    ours = (f"{line[stated['column']]} ({interval})", "")
    return Number(
        name, stated["cell"], str(stated["paper"]), ours, line.get("runs", ABSENT), verdict
    )


# --- numbers without an interval


def interval_of(text: str) -> tuple[float, float]:
    """Ends of an interval in a table.

    >>> interval_of("105 to 221")
    (105.0, 221.0)

    Raises:
        ValueError: The text is not an interval.
    """
    low, _, high = text.partition(" to ")
    return float(low), float(high)


def by_our_interval(paper: float, ours: tuple[float, float], better: str) -> str:
    """Judge the number of a paper by our interval for the same statistic.

    `better` is `less`, a smaller number is better, or `none`: no direction is, so that all outside is below.
    Returns inside; above, if ours is better by more than the interval; or below.

    Raises:
        ValueError: Another word for `better`.
    """
    if better not in (LESS, NONE):
        raise ValueError(f"better: {better}, must be {LESS} or {NONE}")
    low, high = ours
    if low <= paper <= high:
        return "inside"
    return "above" if better == LESS and paper > high else "below"


# --- claims of figures


def claims(rows: Entries) -> dict[str, Any]:
    """The rows that have a claim in words."""
    return {name: row for name, row in rows.items() if "claim" in row}


def _seeds(paper: str, items: Sequence[str]) -> str:
    """Least and largest number of seeds of a line of our figures."""
    tables = [STORE / paper / item / "table.md" for item in items]
    lines = [line for path in tables if path.exists() for line in parsed(path.read_text())]
    names = ("seeds", "runs", "trials")
    counts = [int(line[name]) for line in lines for name in names if name in line]
    if not counts:
        return ABSENT
    return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))


# --- blocks


def number_table(paper: str) -> str:
    """Every number of a paper with its verdict, and why it is neither inside nor above."""
    rows = entries(paper)
    lines = [
        [one.name, one.cell, one.paper, *one.ours, one.seeds, _shown(one), _why(rows, one)]
        for one in numbers(paper, rows)
    ]
    head = ["", "cell", "paper", "as the paper does it", "formal", "seeds", "verdict", "why"]
    return compact(head, without_repeats(lines))


def _shown(number: Number) -> str:
    """The verdict, and whether the paper's interval and ours overlap where it is not inside."""
    texts = (number.paper, next((one for one in number.ours if one != ABSENT), ABSENT))
    found = [_MEAN.fullmatch(text) for text in texts]
    if number.verdict not in JUDGED[1:] or None in found:
        return number.verdict
    (paper, its), (mean, ours) = (map(float, one.groups()) for one in found if one)
    return f"{number.verdict}, overlaps" if abs(paper - mean) <= its + ours else number.verdict


def _why(rows: Entries, number: Number) -> str:
    return str(rows[number.name].get("cells", {}).get(number.cell, ""))


def claim_table(paper: str) -> str:
    """Every figure of a paper, and every table without numbers."""
    lines = []
    for name, row in claims(entries(paper)).items():
        items = row.get("items", [])
        ours = ", ".join(f"`{paper}/{item}/`" for item in items) or ABSENT
        line = [name, row["claim"], ours, _seeds(paper, items), row["verdict"]]
        lines.append([cell.strip() for cell in (*line, row.get("why", ""))])
    head = ["", "in the paper", "ours, in `outputs/paper/`", "seeds", "verdict", "why"]
    return compact(head, lines)


def _counts(paper: str) -> list[int]:
    """Numbers of a paper, by verdict; its claims, by verdict."""
    rows = entries(paper)
    found = [one.verdict for one in numbers(paper, rows)]
    said = [row["verdict"] for row in claims(rows).values() if row["verdict"] != NO_RESULT]
    judged = [len(found), *(found.count(one) for one in (*JUDGED, OTHER, NOT_RUN))]
    return [*judged, len(said), *(said.count(one) for one in CLAIMED)]


def summary() -> str:
    """The number of cells and figures by verdict, for each paper and in total."""
    counts = {title: _counts(paper) for paper, title in PAPERS.items()}
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    head = ["paper", "cells with a number", *JUDGED, OTHER, NOT_RUN]
    head += ["figures and tables in words", *CLAIMED]
    return compact(head, [[title, *map(str, some)] for title, some in counts.items()])


def sentence(papers: Sequence[str] = tuple(PAPERS)) -> str:
    """The totals of papers as a sentence."""
    totals = [sum(column) for column in zip(*map(_counts, papers), strict=True)]
    cells, inside, above, below, other, missing = totals[:6]
    return (
        f"Of {cells} cells with a number {inside} are inside the interval that judges them, {above} above it "
        f"and {below} below it; {other} are not comparable, {missing} were not run."
    )


BLOCKS |= {"state/summary": summary, "state/sentence": sentence}
for _paper in PAPERS:
    BLOCKS[f"state/{_paper}/claims"] = partial(claim_table, _paper)
    if "stated" in described(_paper).content or any("item" in x for x in entries(_paper).values()):
        BLOCKS[f"state/{_paper}/numbers"] = partial(number_table, _paper)
        BLOCKS[f"state/{_paper}/sentence"] = partial(sentence, [_paper])


# --- what a test checks


def problems(paper: str, rows: Entries) -> list[str]:
    """Reasons without a cell, cells without a reason, and rows that contradict the files."""
    found: list[str] = []
    by_name: dict[str, list[Number]] = {name: [] for name in rows}
    for one in numbers(paper, rows):
        by_name[one.name].append(one)
    for name, row in rows.items():
        for check in (_cell_problems, _claim_problems):
            found += [f"{paper}, {name}: {line}" for line in check(paper, row, by_name[name])]
    return found + _left_out(paper, rows)


def _cell_problems(paper: str, row: Mapping[str, Any], cells: Sequence[Number]) -> list[str]:
    reasons: dict[str, str] = row.get("cells", {})
    verdicts = {one.cell: one.verdict for one in cells}
    rules: dict[str, Callable[[str], bool]] = {
        "a reason for a cell that does not exist": lambda cell: cell not in verdicts,
        "a reason for a cell that needs none": lambda cell: (
            cell in reasons and verdicts.get(cell) in GOOD
        ),
        "no reason": lambda cell: verdicts.get(cell, GOOD[0]) not in GOOD and cell not in reasons,
        "a reason without a link": lambda cell: "](" not in reasons.get(cell, "]("),
    }
    every = dict.fromkeys((*reasons, *verdicts))
    return [f"{cell}: {rule}" for rule, broken in rules.items() for cell in every if broken(cell)]


def _claim_problems(paper: str, row: Mapping[str, Any], cells: Sequence[Number]) -> list[str]:
    if "claim" not in row:
        return [] if cells else ["neither a claim nor a number"]
    verdict, why, items = row["verdict"], row.get("why", ""), row.get("items", [])
    rules = {
        f"unknown verdict {verdict}": verdict not in (*CLAIMED, NO_RESULT),
        "no reason": verdict != CLAIMED[0] and not why,
        "a reason without a link": bool(why) and "](" not in why,
        "a verdict that contradicts its items": bool(items) == (verdict in (NOT_RUN, NO_RESULT)),
    }
    missing = [f"no folder {one}" for one in items if not (STORE / paper / one).is_dir()]
    return [rule for rule, broken in rules.items() if broken] + missing


def _left_out(paper: str, rows: Entries) -> list[str]:
    """Tables and stated numbers of the paper's file that have no row."""
    content = described(paper).content
    shown = {row.get("item") for row in rows.values()}
    tables = [name for name, item in content["items"].items() if "rows" in item]
    lines = [f"{paper}: no row for the item {name}" for name in tables if name not in shown]
    stated = [name for name in content.get("stated", {}) if name not in rows]
    return lines + [f"{paper}: no row for the stated numbers of {name}" for name in stated]
