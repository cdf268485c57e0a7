"""docs/results/state.md: every cell that needs a reason has one, and rows agree with the files."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from privrl_bench.papers.items import papers
from privrl_bench.papers.pages import state


def rows(paper: str) -> dict:
    return copy.deepcopy(dict(state.entries(paper)))


@pytest.mark.parametrize("paper", state.PAPERS)
def test_rows_agree_with_the_papers_and_the_results(paper) -> None:
    assert state.problems(paper, rows(paper)) == []


def test_every_paper_has_rows() -> None:
    assert set(state.PAPERS) == set(papers())


def test_a_reason_for_an_unknown_cell_and_a_missing_reason_are_found() -> None:
    changed = rows("dppg")
    reasons = changed["Table 1"]["cells"]
    reasons["Acrobot, DPPG z = 9"] = reasons.pop("Acrobot, DPPG z = 3")
    assert state.problems("dppg", changed) == [
        "dppg, Table 1: Acrobot, DPPG z = 9: a reason for a cell that does not exist",
        "dppg, Table 1: Acrobot, DPPG z = 3: no reason",
    ]


def test_a_cell_that_was_not_run_needs_a_reason_and_one_inside_needs_none() -> None:
    changed = rows("primorl")
    del changed["Table 6"]["cells"]["HalfCheetah, MOPO"]
    changed["Table 1"].setdefault("cells", {})["Pendulum, MOPO"] = "no link"
    assert state.problems("primorl", changed) == [
        "primorl, Table 1: Pendulum, MOPO: a reason for a cell that needs none",
        "primorl, Table 1: Pendulum, MOPO: a reason without a link",
        "primorl, Table 6: HalfCheetah, MOPO: no reason",
    ]


def test_wrong_rows_of_figures_are_found() -> None:
    changed = rows("dppg")
    changed["Figure 3"] = {"claim": "x", "verdict": "perhaps", "items": ["fig99"], "why": "x"}
    changed["Figure 4"] = {"claim": "x", "verdict": "not run", "items": ["fig4"]}
    changed["Figure 7"]["why"] = ""
    changed["Table 4"] = {}
    changed["Table 1"] = {"claim": "x", "verdict": "shown"}
    assert state.problems("dppg", changed) == [
        "dppg, Table 1: a verdict that contradicts its items",
        "dppg, Figure 3: unknown verdict perhaps",
        "dppg, Figure 3: a reason without a link",
        "dppg, Figure 3: no folder fig99",
        "dppg, Figure 4: no reason",
        "dppg, Figure 4: a verdict that contradicts its items",
        "dppg, Figure 7: no reason",
        "dppg, Table 4: neither a claim nor a number",
        "dppg: no row for the item table1",
    ]


def test_stated_numbers_need_a_row() -> None:
    changed = rows("dp-rl")
    del changed["Figure 1"]
    assert state.problems("dp-rl", changed) == ["dp-rl: no row for the stated numbers of Figure 1"]


def test_known_cells_and_totals_are_shown() -> None:
    cells = {(one.name, one.cell): one for one in state.numbers("primorl", rows("primorl"))}
    assert cells["Table 1", "Pendulum, MOPO"].verdict == "above"
    assert cells["Table 1", "Balance, MOPO"].verdict == "inside"
    assert cells["Table 6", "HalfCheetah, MOPO"].verdict == "not run"
    assert cells["Table 1", "Swingup, PriMORL No Privacy"].seeds == "0 / 5"
    assert "| DPPG | 20 | 12 | 6 | 2 | 0 | 0 |" in state.summary()
    inside, above, below, other, missing = state.summary().splitlines()[-1].split(" | ")[2:7]
    assert state.sentence() == (
        f"Of 49 cells with a number {inside} are inside the interval that judges them, {above} above it "
        f"and {below} below it; {other} are not comparable, {missing} were not run."
    )
    assert "| Figure 1 | REINFORCE, without noise | 180 | " in state.number_table("dp-rl")


@pytest.mark.parametrize("judged", ["not comparable", "no run"])
def test_a_table_of_other_data_is_not_comparable_where_it_was_run(monkeypatch, judged) -> None:
    line = {"env": "pendulum", "method": "MOPO", "paper": "1 ± 1", "formal": "", "seeds": "3"}
    line |= {"as the paper does it": "1", "verdict": judged}
    monkeypatch.setattr(state, "comparison", lambda *_: (list(line), [list(line.values())]))
    found = state.numbers("primorl", {"Table 6": {"item": "table6"}})[0]
    assert found.verdict == {"no run": "not run"}.get(judged, judged)


def test_a_verdict_says_whether_the_intervals_overlap() -> None:
    one = state.Number("Table 1", "x", "1 ± 1", ("-", "2.4 ± 0.5"), "5", "above")
    assert state._shown(one) == "above, overlaps"
    assert state._shown(replace(one, ours=("2.6 ± 0.5", ""))) == "above"
    assert state._shown(replace(one, verdict="inside")) == "inside"


def stated(monkeypatch, **line: str) -> state.Number:
    """The first stated number of dp-rl, with these cells in our table."""
    monkeypatch.setattr(state, "committed", lambda item, **where: [line])
    return state.numbers("dp-rl", {"Figure 1": {}})[0]


def test_a_number_without_an_interval_is_judged_by_ours(monkeypatch) -> None:
    new = {"median": "156", "runs": "100", "single runs, 95 %": "50 to 400"}
    inside = stated(monkeypatch, **new)
    assert (inside.verdict, inside.ours[0]) == ("inside", "156 (50 to 400)")
    assert stated(monkeypatch, **new | {"single runs, 95 %": "50 to 170"}).verdict == "above"
    assert stated(monkeypatch, **new | {"single runs, 95 %": "190 to 400"}).verdict == "below"


def test_a_reason_with_a_link_is_needed_for_below() -> None:
    check, cells = (
        state._cell_problems,
        [state.Number("Figure 1", "x", "1", ("2", ""), "1", "below")],
    )
    assert check("dp-rl", {}, cells) == ["x: no reason"]
    assert check("dp-rl", {"cells": {"x": "no link"}}, cells) == ["x: a reason without a link"]
    assert check("dp-rl", {"cells": {"x": "[x](y)"}}, cells) == []
