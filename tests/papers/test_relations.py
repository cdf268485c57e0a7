"""GPOPE's table 1: signs of the relations among epsilon, delta, sigma, T and n, from the accountants."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from privrl_bench.papers.analytic_figures import (
    QUANTITIES,
    Relation,
    cost,
    draw_signs,
    power,
    powers_in_words,
    sign_table,
)
from privrl_bench.papers.items import PaperFigure, paper
from privrl_bench.reporting.table_writer import aligned, parsed

ROOT = Path(__file__).parents[2]
STORE = ROOT / "outputs" / "paper" / "gpope" / "table1"
ONE = {"delta": [1e-5], "sigma": [2.0], "T": [10000], "n": [1000]}
NEGATIVE = [{"epsilon", "delta"}, {"epsilon", "sigma"}, {"epsilon", "n"}, {"delta", "sigma"}]
NEGATIVE += [{"delta", "n"}, {"sigma", "n"}]  # the others: T with each of the four


def test_the_cost_is_that_of_dp_accounting() -> None:
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        SampledWithoutReplacementDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.rdp import RdpAccountant

    point = {name: values[0] for name, values in ONE.items()}
    one = SampledWithoutReplacementDpEvent(1000, 1, GaussianDpEvent(1.0))  # 2 clips apart
    account = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    found = account.compose(SelfComposedDpEvent(one, 10000)).get_epsilon(1e-5)
    assert cost(point, "rdp") == pytest.approx(found)
    assert found == pytest.approx(1.0426, abs=1e-4)


@pytest.mark.slow
def test_powers_are_those_of_the_theorem_where_it_holds() -> None:
    # Much noise and many rounds: the loss is Gaussian with deviation 2 sqrt(T) / (n sigma).
    point = {"delta": 1e-5, "sigma": 20.0, "T": 250_000, "n": 1000}
    for grown, answer in (("T", "sigma"), ("n", "sigma"), ("n", "T")):
        theorem = Relation(grown, answer, {}).theorem()
        assert power(point, grown, answer, "pld") == pytest.approx(theorem, rel=0.05)


def test_a_relation_is_the_same_from_either_side() -> None:
    point = {"delta": 1e-5, "sigma": 2.0, "T": 10000, "n": 1000}
    for one, other in itertools.combinations(QUANTITIES, 2):
        there, back = (power(point, *pair, "pld") for pair in ((one, other), (other, one)))
        assert there * back == pytest.approx(1.0, rel=0.35)  # powers are not constant
        assert math.copysign(1.0, there) == math.copysign(1.0, Relation(one, other, {}).theorem())


def test_signs_are_of_the_quantities_and_unknown_where_they_change() -> None:
    assert Relation("delta", "epsilon", {}).sign([0.5]) == "-"  # the power is of log(1 / delta)
    assert Relation("sigma", "epsilon", {}).sign([-1.0, math.nan]) == "-"
    assert Relation("sigma", "epsilon", {}).sign([-1.0, 1.0]) == "?"
    assert Relation("sigma", "epsilon", {}).sign([0.0, 1.0]) == "?"
    assert Relation("sigma", "epsilon", {}).sign([math.nan]) == "?"
    assert not Relation("sigma", "epsilon", {"pld": (-1.0,), "rdp": (1.0,)}).agrees()
    assert powers_in_words([math.nan]) == "no answer"
    assert powers_in_words([1.0, math.nan, 2.0]) == "1.00 to 2.00 (no answer at 1 of 3)"


@pytest.mark.slow
def test_ten_pairs_with_the_signs_of_the_theorem(tmp_path) -> None:
    picture = PaperFigure("title", "relations", [], ONE)
    head, lines = sign_table(picture, {})
    assert len(lines) == 10
    for line in lines:
        expected = "-" if {line[0], line[1]} in NEGATIVE else "+"
        assert line[2:6] == [expected] * 3 + ["agrees"], line
    assert head[2:6] == ["sign, theorem 1", "sign, PLD", "sign, RDP", "verdict"]
    draw_signs(picture, parsed(aligned(head, lines)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_committed_table_has_all_pairs_and_every_one_agrees() -> None:
    item = paper("gpope").item("table1", "paper")
    assert isinstance(item, PaperFigure)
    assert not item.settings()
    lines = parsed((STORE / "table.md").read_text())
    pairs = {frozenset((line["grows"], line["follows"])) for line in lines}
    assert pairs == set(map(frozenset, itertools.combinations(QUANTITIES, 2)))
    assert [line["verdict"] for line in lines] == ["agrees"] * 10
    assert list(STORE.glob("figure.*"))
