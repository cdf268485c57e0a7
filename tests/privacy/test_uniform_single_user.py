"""One of n people in a round: profile, composition, calibration, and what the gate does with it."""

import itertools
import math
from collections import Counter

import dp_accounting
import numpy as np
import pytest
import torch
from helpers import release
from scipy.stats import norm

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.calibrate import calibrated_z, z_for
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.accounting.single_user import epsilon_of, loss_distribution, profile
from privrl_bench.privacy.contribution import Block, Contribution
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import SeededNoise

KNOWN_EPSILON = "privacy/test_uniform_single_user.py::test_known_answer_of_rdp"
SENSITIVITY = "privacy/test_uniform_single_user.py::test_everybody_is_as_likely_and_one_is_drawn"
LEAKS = "audit/test_leaks.py::test_evaluating_a_policy_opens_no_path"
AUDIT = "privacy/test_uniform_single_user.py::test_adversarial_people_stay_below_the_composition"


GRID = np.linspace(-12.0, 13.0, 40_001)  # of outputs, in units of the noise


def hockey_stick(one, other, log_alpha):
    """Numerically, of densities on GRID (or its square)."""
    cell = (GRID[1] - GRID[0]) ** one.ndim
    return np.maximum(one - np.exp(log_alpha) * other, 0.0).sum() * cell


def event(z, n):
    return ReleaseEvent("gaussian", z, "replace_one", 1.0 / n, n, 1, sampling="uniform_single_user")


@pytest.mark.parametrize(("z", "n"), [(2.0, 4), (0.8, 10), (6.0, 100)])
def test_one_release_is_the_theorem(z, n):
    mu, q = 2.0 / z, 1.0 / n
    centre, far = norm.pdf(GRID), norm.pdf(GRID, loc=mu)
    mixed = (1 - q) * centre + q * far
    for log_alpha in (0.0, 0.05, 0.5):
        assert profile(np.array([log_alpha]), z, n)[0] == pytest.approx(
            hockey_stick(mixed, centre, log_alpha), abs=1e-8
        )
        assert profile(np.array([-log_alpha]), z, n)[0] == pytest.approx(
            hockey_stick(centre, mixed, -log_alpha), abs=1e-8
        )


def test_one_person_is_the_plain_gaussian_and_replacing_doubles():
    assert epsilon_of(((2.0, 1, 1),), 1e-5) == pytest.approx(4.377178, abs=1e-4)
    assert ledger_epsilon([event(2.0, 1)], 1e-5) == pytest.approx(4.377178, abs=1e-5)


def test_known_answer_of_rdp():
    found = ledger_epsilon(Counter({event(2.0, 100): 1000}), 1e-5, "rdp")
    assert found == pytest.approx(3.5761, abs=1e-4)


@pytest.mark.parametrize(
    ("z", "n", "count"), [(2.0, 100, 1000), (1.0, 1000, 1000), (3.392, 1000, 10_000), (20, 10, 50)]
)
def test_pld_is_below_rdp_and_above_the_first_order(z, n, count):
    """Below: mu of the central limit, whose epsilon a long composition approaches from above."""
    tight = ledger_epsilon(Counter({event(z, n): count}), 1e-5)
    limit = math.sqrt(math.expm1(4 / z**2) * count) / n
    assert tight < ledger_epsilon(Counter({event(z, n): count}), 1e-5, "rdp")
    assert tight > dp_accounting.get_epsilon_gaussian(1.0 / limit, 1e-5)


def test_finer_cells_change_little_and_only_downwards():
    coarse = loss_distribution(2.0, 50, 1e-2).self_compose(20).get_epsilon_for_delta(1e-5)
    fine = loss_distribution(2.0, 50, 1e-3).self_compose(20).get_epsilon_for_delta(1e-5)
    assert fine <= coarse <= 1.1 * fine


def test_adversarial_people_stay_below_the_composition():
    """Two rounds of three people in one dimension: the two others' rows are chosen anew in each round.

    The worlds differ in one person, whose rows an adversary chooses, too; densities on a square.
    """
    z, n, worst = 3.0, 3, 0.0
    grid = np.linspace(-5.0, 5.0, 201)
    area = (grid[1] - grid[0]) ** 2
    law = loss_distribution(z, n, 1e-3).self_compose(2)

    def one(own, others):
        return sum(norm.pdf(grid, loc=m) for m in (own, *others)) / n

    rows = [-1 / z, 0.0, 1 / z]
    pairs = [
        (one(a, others), one(b, others))
        for a, b in itertools.permutations(rows, 2)
        for others in [(-1 / z, -1 / z), (1 / z, 1 / z), (-1 / z, 1 / z), (0.0, 0.0)]
    ]
    for (a, b), (c, d) in itertools.product(pairs, repeat=2):
        here, there = np.outer(a, c), np.outer(b, d)
        for eps in (0.05, 0.2, 0.4):
            left = np.maximum(here - math.exp(eps) * there, 0.0).sum() * area
            bound = law.get_delta_for_epsilon(eps)
            assert left <= bound + 1e-7
            worst = max(worst, left / bound)
    assert worst > 0.9  # and somebody comes near


def test_table_1_signs():
    """Noise grows with smaller epsilon, smaller delta, more rounds; it falls with more people."""

    def z(budget=1.0, delta=1e-5, rounds=50, n=30):
        return z_for(budget, lambda z: event(z, n), rounds, delta, "pld", 2)

    usual = z()
    assert z(budget=0.5) > usual
    assert z(delta=1e-7) > usual
    assert z(rounds=200) > usual
    assert z(n=120) < usual


# --- the gate


def config(**changes):
    plain = {"sampling": "uniform_single_user", "adjacency": "replace_one", "users_per_round": 1}
    return PrivacyConfig(**{**plain, "population": 40, "z": 2.0, "clip": 3.0, **changes})


def gate(rounds=5, **changes):
    one = config(**changes)
    blocks = (Block("theta", 4, one.clip if one.mechanism == "gaussian" else 0.01),)
    noise = [SeededNoise(0, 7)]
    return Gate([one], blocks, Unit("one person", None), rounds, noise, [Ledger(None)])


def test_everybody_is_as_likely_and_one_is_drawn():
    plan = gate()
    drawn = np.array([plan.draw(index, 40, False).numbers()[0] for index in range(4000)])
    assert drawn.shape == (4000, 1)
    counts = np.bincount(drawn[:, 0], minlength=40)
    assert len(counts) == 40
    assert ((counts - 100) ** 2 / 100).sum() < 80  # chi-square of 39
    with pytest.raises(PrivacyError, match="is public"):
        plan.draw(0, 39, False).numbers()


def test_a_release_is_the_row_and_noise_of_z_clips():
    plan = gate(rounds=2000)
    row = torch.tensor([[[1.0, -1.0, 0.5, 0.0]]])
    valid = torch.ones(1, 1, dtype=torch.bool)
    seen = torch.cat(
        [
            release(plan, Contribution({"theta": row.clone()}, valid), index).values["theta"]
            for index in range(400)
        ]
    )
    assert torch.allclose(seen.mean(0), row[0, 0], atol=4 * 6.0 / math.sqrt(400))
    assert float(seen.std()) == pytest.approx(6.0, rel=0.1)
    line = plan.ledgers[0].lines[0]
    assert (line["q"], line["population"], line["z"]) == (1 / 40, 40, 2.0)
    assert plan.spent_epsilon(0, 400) == ledger_epsilon(Counter({event(2.0, 40): 400}), 1e-5)
    assert plan.planned_epsilon(0) == ledger_epsilon(Counter({event(2.0, 40): 2000}), 1e-5)


def test_the_noise_for_a_budget():
    plan = gate(rounds=1000)
    z = calibrated_z(plan, 0, 1.0)
    assert ledger_epsilon(Counter({event(z, 40): 1000}), 1e-5) <= 1.0
    assert ledger_epsilon(Counter({event(0.99 * z, 40): 1000}), 1e-5) > 1.0
