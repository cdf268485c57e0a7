"""Poisson cohorts: members and sizes; epsilon is in test_accountant.py and test_calibrate.py."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import load_script
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gate import make_account

from privrl_bench.algorithms.registry import ALGORITHMS, algo_schema
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import PrivacyConfig, RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.rules import taking
from privrl_bench.privacy.sampling.poisson import Poisson
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run

KNOWN_EPSILON = "privacy/test_accountant.py::test_poisson_sampling_matches_the_regression_grid"
SENSITIVITY = "privacy/test_poisson.py::test_each_user_joins_with_the_same_probability"
LEAKS = "audit/test_leaks.py::test_poisson_cohorts"
AUDIT = "audit/test_planted_defects.py::test_the_shipped_code_is_not_contradicted"


def plan():
    return make_account(sampling="poisson", population=40, adjacency="add_or_remove")


def test_each_user_joins_with_the_same_probability():
    """q = 4 / 40, independently; with 30 users there, numbers from 30 on are absent users'."""
    gate = plan()
    drawn = [gate.draw(index, 30, False) for index in range(4000)]
    assert [len(one.numbers()[0]) for one in drawn] == [one.sizes[0] for one in drawn]
    counts = np.bincount(np.concatenate([one.numbers()[0] for one in drawn]), minlength=40)
    assert ((counts - 400) ** 2 / 400).sum() < 80  # chi-square of 40
    assert all(len(set(one.numbers()[0])) == one.sizes[0] for one in drawn)


def test_a_draw_is_made_once_a_round_and_stays_within_the_population():
    gate = plan()
    assert np.array_equal(gate.draw(3, 40, False).numbers()[0], gate.draw(3, 40, True).numbers()[0])
    with pytest.raises(PrivacyError, match="population"):
        gate.draw(3, 41, False)


# -- q = 1: everybody is in every round, without amplification

EVERYBODY = "log=none log.plot=false eval.episodes=2 rounds=3 privacy=poisson privacy.z=2"
# Every private algorithm that takes Poisson cohorts, but for those whose users come over the rounds.
WORDS = {
    "dppg": "env=cartpole",
    "dppg_kl": "env=riverswim",
    "dppg_l2": "env=riverswim",
    "reinforce": "env=cartpole",
    "primorl": "env=pendulum data.public=0.2",
    "mean_return": "env=cartpole algo.center=20 privacy.clip=20 rounds=1",
}


def of_everybody(adjacency: str, users: int = 8, z: float = 1.0) -> ReleaseEvent:
    """What the sampler records with U = population."""
    config = PrivacyConfig(
        users_per_round=users, population=users, sampling="poisson", adjacency=adjacency
    )
    return Poisson.record(ReleaseEvent("gaussian", z, adjacency, sampling="poisson"), config)


def test_everybody_is_drawn_and_nobody_is_cut():
    gate = make_account(sampling="poisson", population=4, adjacency="add_or_remove")
    assert gate.event(0).q == 1.0
    assert gate.slots == 4
    for index in range(20):
        assert sorted(gate.draw(index, 4, False).numbers()[0]) == [0, 1, 2, 3]


@pytest.mark.parametrize("adjacency", Poisson.adjacencies)
@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (1.0, 3), (0.3, 50), (5.0, 20)])
def test_everybody_in_every_round_is_the_gaussian_mechanism(adjacency, z, rounds):
    """The formula of Balle and Wang in 50 digits, which shares no code with the package."""
    exact = load_script("check_epsilon").balle_wang(math.sqrt(rounds) / z, 1e-5)
    found = ledger_epsilon(Counter({of_everybody(adjacency, z=z): rounds}), 1e-5)
    assert found == pytest.approx(exact, rel=1e-9)
    fixed = ledger_epsilon(
        Counter({ReleaseEvent("gaussian", z, "zero_out", sampling="fixed"): rounds}), 1e-5
    )
    assert found == fixed


def test_add_or_remove_of_cut_or_fixed_cohorts_is_not_analysed_as_that_of_everybody():
    drawn = of_everybody("add_or_remove")
    for other in (replace(drawn, cap=7), replace(drawn, population=None, cap=None)):
        for counts in ([other], [other, drawn]):
            with pytest.raises(PrivacyError, match="add_or_remove"):
                ledger_epsilon(counts, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", Poisson.adjacencies)
@given(
    z=st.sampled_from([0.5, 1.0, 4.0]),
    rounds=st.sampled_from([1, 20]),
    users=st.integers(2, 60),
    share=st.floats(0.5, 1.0),
)
@settings(max_examples=15, deadline=None)
def test_epsilon_grows_to_that_of_everybody(adjacency, z, rounds, users, share):
    """Up to the grid of the loss distributions, which bounds epsilon from above within a thousandth."""
    everybody = of_everybody(adjacency, users, z)
    fewer = max(1, math.floor(share * (users - 1)))
    values = [
        ledger_epsilon(Counter({one: rounds}), 1e-5)
        for one in (
            replace(everybody, q=fewer / users),
            replace(everybody, q=(users - 1) / users),
            replace(everybody, q=1.0 - 1e-9),
            everybody,
        )
    ]
    assert all(a <= b * 1.001 for a, b in itertools.pairwise(values))
    assert values[2] == pytest.approx(values[3], rel=1e-3)


def test_the_words_below_are_those_of_every_algorithm():
    kinds = {name: algo_schema(name).traits for name in ALGORITHMS}
    found = {
        name
        for name, traits in kinds.items()
        if Draws.SAMPLED in traits.draws and any(m.subsampled for m in taking(traits.sends))
    }
    assert found - set(WORDS) == {"dqn", "dp_bc", "dp_cql"}  # their own tests
    assert Data.KEPT in kinds["dqn"].data


def everybodys(name: str, adjacency: str, sets: str, trained) -> RunConfig:
    users = 48 if name == "primorl" else 6
    words = [*EVERYBODY.split(), f"algo={name}", *WORDS[name].split()]
    words += [f"privacy.adjacency={adjacency}", f"privacy.users_per_round={users}"]
    words += [f"data.id={sets}"] if name == "primorl" else [f"privacy.population={users}"]
    words += [f"algo.policy={trained('dropout')}"] if name == "mean_return" else []
    return compose(later_wins(words))


@pytest.mark.fast_every(7)
@pytest.mark.parametrize("adjacency", Poisson.adjacencies)
@pytest.mark.parametrize("name", WORDS)
def test_a_run_of_everybody_has_the_gaussian_mechanisms_epsilon(name, adjacency, sets, trained):
    parts = make_plan([everybodys(name, adjacency, sets, trained)])
    assert parts.gate.event(0).q == 1.0
    delta, rounds = parts.config.privacy.delta, parts.rounds
    exact = load_script("check_epsilon").balle_wang(math.sqrt(rounds) / 2.0, delta)
    plan = describe_plan(parts, 0)
    assert plan["guarantee"]["epsilon"] == plan["epsilon"] == pytest.approx(exact, rel=1e-9)
    assert list(plan["epsilons"].values()) == [plan["epsilon"]] * len(plan["epsilons"])
    assert plan["epsilon_paper"] > exact
    fixed = Counter({ReleaseEvent("gaussian", 2.0, "zero_out", sampling="fixed"): rounds})
    assert plan["epsilon_paper"] == ledger_epsilon(fixed, delta, "rdp")


def test_users_who_come_over_the_rounds_are_more_than_a_cohort():
    words = (
        "algo=dqn env=riverswim privacy.users_per_round=6 privacy.population=6 rounds=3 log=none"
    )
    with pytest.raises(ConfigError, match=r"^privacy\.population|^privacy\.users_per_round"):
        make_plan([compose(words.split())])


@pytest.mark.parametrize("adjacency", Poisson.adjacencies)
def test_a_run_of_everybody_ends(adjacency, tmp_path):
    """It failed after the first line of its plan, and its status stayed `running`."""
    config = everybodys("dppg", adjacency, "", None)
    (result,) = run([config], [tmp_path / "run"], [[]])
    assert result.status == "done"
    epsilon = result.summary["epsilon"]
    assert result.summary["epsilon_paper"] > epsilon == result.summary["epsilon_planned"]


def test_noise_is_calibrated_for_everybody():
    words = [
        *EVERYBODY.split(),
        "env=cartpole",
        "privacy.population=6",
        "privacy.users_per_round=6",
    ]
    words = later_wins(words, ["privacy.z=auto", "privacy.epsilon=3"])
    parts = make_plan([compose(words)])
    z = parts.config.privacy.z
    assert parts.gate.planned_epsilon(0) == pytest.approx(3.0, rel=0.02)
    assert load_script("check_epsilon").balle_wang(math.sqrt(3) / z, 1e-5) <= 3.0


def test_a_plan_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    """The status of its folder stayed `running`."""
    monkeypatch.setattr(Poisson, "wrap", classmethod(lambda *_: next(iter(()))))
    config = compose([*EVERYBODY.split(), "env=cartpole", "privacy.population=90"])
    with pytest.raises(StopIteration):
        run([config], [tmp_path / "run"], [[]])
    assert not (tmp_path / "run" / "status.json").exists()
