"""New noise in every round, as published code has it: a label, a caveat, and noise of the stated size."""

import math

import numpy as np
import pytest
from test_tree import totals, wide

from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent

KNOWN_EPSILON = (
    "packs/imitations/test_fresh_noise_per_round.py"
    "::test_the_label_is_one_over_z_and_does_not_add_up"
)
SENSITIVITY = (
    "privacy/test_mechanism_registry.py::test_one_user_moves_a_release_by_at_most_one_clip"
)
LEAKS = "packs/imitations/test_fresh_noise_per_round.py::test_it_opens_no_path_but_its_own"
AUDIT = (
    "privacy/test_mechanism_registry.py::test_an_audit_of_one_release_does_not_contradict_epsilon"
)


def test_the_label_is_one_over_z_and_does_not_add_up():
    label = ReleaseEvent("label", 0.2, "zero_out", sampling="fixed")
    assert ledger_epsilon([label] * 50, 1e-5) == 5.0
    assert (
        ledger_epsilon([label, ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed")], 1e-5)
        == math.inf
    )
    assert (
        ledger_epsilon([ReleaseEvent("label", 0.0, "zero_out", sampling="fixed")], 1e-5) == math.inf
    )


def test_it_opens_no_path_but_its_own():
    from privrl_bench.audit.leaks import find_leaks
    from privrl_bench.audit.shrink import shrink
    from privrl_bench.composition.compose import compose

    words = ("algo=ucbvi", "env=riverswim", "privacy=fresh_noise_per_round", "privacy.z=0.5")
    few = ("privacy.users_per_round=3", "eval.episodes=1", "total_steps=600")
    report = find_leaks(shrink(compose([*words, *few]))[0], late=False)
    assert report.found == {}
    assert report.status == "heuristic"


def test_the_imitation_is_fresh_laplace_noise_with_a_caveat() -> None:
    plan = wide(0.5, 20, mechanism="fresh_noise_per_round")
    found = totals(plan, 20, 20_000)
    for index in (0, 1, 2, 6, 7, 19):
        draws = math.floor(math.log(index + 1)) + 1
        spread = float(found[index].std())
        assert spread == pytest.approx(0.5 * math.sqrt(2 * draws), rel=0.04), index
    kurtosis = float((found[0] ** 4).mean() / (found[0] ** 2).mean() ** 2)
    assert kurtosis == pytest.approx(6.0, rel=0.15)  # Laplace; a Gaussian has 3
    assert abs(np.corrcoef(found[8:10].numpy())[0, 1]) < 0.03
    # The average over rounds tells the sum: what the caveat says.
    assert float(found[10:].mean(0).std()) < 0.5 * float(found[19].std())
    guarantee = plan.guarantee(0, 20)
    assert (guarantee.status, guarantee.epsilon) == ("heuristic", 2.0)
    assert "fresh noise" in guarantee.caveats
