"""PriMORL's figure 6: the committed numbers of rounds, against dp-accounting itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from privrl_bench.papers.analytic_figures import draw_rounds, rounds_table
from privrl_bench.papers.items import PaperFigure, paper
from privrl_bench.reporting.style import MOST_LINES
from privrl_bench.reporting.table_writer import ABSENT, aligned, parsed

ROOT = Path(__file__).parents[2]
RATES = (1e-2, 1e-3, 1e-4)
GAINS = ("q = 0.001 / q = 0.01", "q = 0.0001 / q = 0.001")
SMALL = {"q": [1e-2, 1e-3], "delta": 1e-5, "epsilons": [20.0], "z": [0.3, 0.5], "most": 1000}


def committed() -> list[dict[str, str]]:
    return parsed((ROOT / "outputs" / "paper" / "primorl" / "fig6" / "table.md").read_text())


def rounds(line: dict[str, str], q: float) -> int:
    return int(line[f"rounds, q = {q:g}"].replace(",", ""))


def epsilon(made: object, z: float, q: float, count: int) -> float:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count)
    return float(made.compose(event).get_epsilon(1e-5))


@pytest.mark.slow
def test_rounds_by_rdp_are_the_most_that_dp_accounting_permits() -> None:
    from dp_accounting.rdp import RdpAccountant

    checked = 0
    for line in committed():
        if line["accountant"] != "RDP" or line["z"] not in ("0.25", "0.5", "1"):
            continue
        for q in RATES:
            count, z, budget = rounds(line, q), float(line["z"]), float(line["epsilon"])
            if count:
                assert epsilon(RdpAccountant(), z, q, count) <= budget
            assert epsilon(RdpAccountant(), z, q, count + 1) > budget
            checked += 1
    assert checked == 27


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(("budget", "z", "q"), [(5, 1, 1e-2), (20, 0.4, 1e-2), (100, 0.3, 1e-3)])
def test_rounds_by_pld_cost_the_budget(budget, z, q) -> None:
    from dp_accounting.pld import PLDAccountant

    cells = {key: f"{value:g}" for key, value in (("epsilon", budget), ("z", z))}
    (line,) = (one for one in committed() if {**one, **cells} == one and one["accountant"] == "PLD")
    made = PLDAccountant(value_discretization_interval=1e-4)
    assert epsilon(made, z, q, rounds(line, q)) == pytest.approx(budget, rel=0.01)


def test_a_tenth_of_q_gains_more_than_ten_times_the_rounds() -> None:
    gains = [
        (float(line["z"]), float(line[name]))
        for line in committed()
        for name in GAINS
        if line[name] != ABSENT
    ]
    assert len(gains) > 40
    assert min(gain for _, gain in gains) > 15
    assert all(100 <= gain < 200 for z, gain in gains if z >= 0.7)  # rounds go with 1 / q^2


def test_the_item_draws_every_q_in_at_most_six_lines() -> None:
    item = paper("primorl").item("fig6", "paper")
    assert isinstance(item, PaperFigure)
    assert 2 * len(item.facts["q"]) <= MOST_LINES


@pytest.mark.slow
def test_rounds_beyond_the_most_are_not_counted_by_pld(tmp_path) -> None:
    picture = PaperFigure("title", "rounds", [], SMALL)
    head, lines = rounds_table(picture, {})
    assert lines[0] == ["20", "0.3", "RDP", "14", "660", "47.1"]
    assert lines[1][2:4] == ["PLD", "36"]
    assert lines[3][2:] == ["PLD", "over 1,000", "over 1,000", ABSENT]
    draw_rounds(picture, parsed(aligned(head, lines)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
