"""Running sums: whose noise is in them, what one user can move, and the epsilon of all releases together."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gate import ONE, make_account, rows_for, send

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.mechanisms.tree import RunningNoise, levels
from privrl_bench.privacy.noise import SeededNoise
from privrl_bench.privacy.rules import check

KNOWN_EPSILON = "privacy/test_tree.py::test_known_epsilons_of_a_tree_over_1000_rounds"
SENSITIVITY = "privacy/test_tree.py::test_one_user_moves_every_later_sum_by_their_clipped_row"
LEAKS = "audit/test_leaks.py::test_every_algorithm_as_it_is_shipped"  # ucbvi
AUDIT = (
    "privacy/test_mechanism_registry.py::test_an_audit_of_one_release_does_not_contradict_epsilon"
)


def totals(plan, rounds, size=6):
    """[rounds, size] running sums that come out when everybody sends zeros: the noise alone."""
    total, found = torch.zeros(size, dtype=torch.float64), []
    for index in range(rounds):
        zeros = {"actor": torch.zeros(1, 4, size)}
        total = total + 4 * send(plan, zeros, index).values["actor"][0].double()
        found.append(total.clone())
    return torch.stack(found)


def wide(z, rounds, seed=0, mechanism="tree", size=20_000):
    blocks = (type(ONE[0])("actor", size, 0.5),)
    return make_account(blocks=blocks, z=z, rounds=rounds, seeds=(seed,), mechanism=mechanism)


def test_a_sum_is_under_the_noise_of_its_binary_digits() -> None:
    found = totals(wide(2.0, 8), 8, 20_000)
    for count, spread in enumerate(found.std(dim=1), start=1):
        expected = 2.0 * 0.5 * math.sqrt(count.bit_count())
        assert float(spread) == pytest.approx(expected, rel=0.03), count
    # Sums that share a node share its noise; 4 and 8 share none.
    c = np.corrcoef(found.numpy())
    assert c[3, 4] == pytest.approx(1 / math.sqrt(2), abs=0.03)
    assert abs(c[3, 7]) < 0.03


@settings(max_examples=40)
@given(st.integers(1, 300))
def test_a_round_is_in_at_most_levels_nodes_and_a_sum_is_of_its_digits(rounds) -> None:
    noise, covers = RunningNoise(), {}
    for index in range(rounds):
        below = noise.leaving(index)
        assert all(place in noise.kept for place in below)
        covers[index] = {index}.union(*(covers[place] for place in below))
        noise.keep(index, [])
        kept = sorted(noise.kept)
        assert len(kept) == (index + 1).bit_count()
        assert sorted(x for place in kept for x in covers[place]) == list(range(index + 1))
    for one in range(rounds):
        assert sum(one in nodes for nodes in covers.values()) <= levels(rounds)


def test_epsilon_is_that_of_one_row_in_all_its_nodes() -> None:
    plan = make_account(z=3.0, rounds=1000, mechanism="tree")
    exact = ledger_epsilon([ReleaseEvent("gaussian", 3.0, "zero_out", sampling="fixed")] * 10, 1e-5)
    assert plan.planned_epsilon(0) == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(
        ledger_epsilon([ReleaseEvent("gaussian", 0.948683, "zero_out", sampling="fixed")], 1e-5),
        rel=1e-4,
    )
    send(plan, rows_for(ONE))
    guarantee = plan.guarantee(0, 1)
    assert (guarantee.epsilon, guarantee.notion) == (pytest.approx(exact), "joint")
    assert guarantee.status == "formal"


@pytest.mark.parametrize(("z", "known"), [(1.0, 19.0536), (5.0, 2.8137), (20.0, 0.6158)])
def test_known_epsilons_of_a_tree_over_1000_rounds(z, known) -> None:
    """Source: dp-accounting's SingleEpochTreeAggregationDpEvent(z, 1000), RDP, REPLACE_SPECIAL, delta 1e-5."""
    plan = make_account(z=z, rounds=1000, mechanism="tree", accountant="rdp")
    assert plan.planned_epsilon(0) == pytest.approx(known, abs=1e-4)
    tight = make_account(z=z, rounds=1000, mechanism="tree").planned_epsilon(0)
    assert 0.85 * known < tight < known


def test_a_round_that_was_tried_again_is_one_more_node_for_everybody() -> None:
    plan = make_account(z=3.0, rounds=1000, mechanism="tree")
    for index in range(3):
        send(plan, rows_for(ONE), index)
    plan.ledgers[0].again(1)
    plan.ledgers[0].again(2)
    twelve = ledger_epsilon(
        [ReleaseEvent("gaussian", 3.0, "zero_out", sampling="fixed")] * 12, 1e-5
    )
    assert plan.spent_epsilon(0) == pytest.approx(twelve, rel=1e-9)


def test_one_user_moves_every_later_sum_by_their_clipped_row() -> None:
    """With the same noise, sums with and without the user differ by their row from their round on."""
    with_user, without = (make_account(z=1.0, rounds=8, mechanism="tree") for _ in range(2))
    rows = [rows_for(ONE, scale=10.0 + i) for i in range(8)]
    one, two = torch.zeros(6), torch.zeros(6)
    for index, row in enumerate(rows):
        other = {"actor": row["actor"].clone()}
        if index == 3:
            other["actor"][0, 2] = 0.0
        one = one + 4 * send(with_user, row, index).values["actor"][0]
        two = two + 4 * send(without, other, index).values["actor"][0]
        moved = float((one - two).norm())
        assert moved == pytest.approx(0.5 if index >= 3 else 0.0, abs=5e-3)


def test_a_restarted_seeded_run_goes_on_with_the_same_noise() -> None:
    whole, first = wide(1.0, 8, size=6), wide(1.0, 8, size=6)
    expected = totals(whole, 8)
    totals(first, 5)
    second = wide(1.0, 8, size=6)
    second.ledgers[0] = first.ledgers[0]
    total = expected[4]
    for index in range(5, 8):
        zeros = {"actor": torch.zeros(1, 4, 6)}
        total = total + 4 * send(second, zeros, index).values["actor"][0].double()
        torch.testing.assert_close(total, expected[index], atol=1e-5, rtol=0)


def test_poisson_running_sums_are_refused() -> None:
    poisson = {"sampling": "poisson", "population": 9, "adjacency": "add_or_remove"}
    with pytest.raises(ConfigError, match=r"privacy\.mechanism"):
        check(PrivacyConfig(users_per_round=4, mechanism="tree", **poisson))
    config = PrivacyConfig(users_per_round=4, **poisson)
    config.mechanism = "tree"
    with pytest.raises(PrivacyError, match="poisson"):
        Gate([config], ONE, Unit("u", 1), 5, [SeededNoise(0, 0)], [Ledger(None)])
