"""Predictions of return from measured runs: interpolation, the split of users, and what is not predicted."""

import csv
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrl_bench.papers.frontier import (
    _SAME,
    Point,
    best,
    points,
    predict,
    rounds_by_rule,
)
from privrl_bench.papers.pages import dppg as frontier
from privrl_bench.papers.pages.dppg import draw_frontier, predicted
from privrl_bench.reporting.run_loader import _KEPT

MEASURED = [
    Point(10, 8, 0.1, (100.0, 120.0)),
    Point(10, 8, 0.4, (20.0, 40.0)),
    Point(10, 32, 0.1, (150.0,)),
    Point(40, 8, 0.1, (200.0, 210.0)),
    Point(40, 8, 0.4, (10.0, 10.0)),
]


def test_a_measured_run_predicts_itself():
    found = predict(MEASURED, 80, 0.8, 10)
    assert (found.mean, found.low, found.high) == (110.0, 100.0, 120.0)
    assert (found.rounds, found.users, found.simulated, found.seeds) == (10, 8, 8, 2)


def test_between_two_noises_it_interpolates_in_the_logarithm():
    found = predict(MEASURED, 80, 8 * 0.2, 10)
    assert found.mean == pytest.approx((110 + 30) / 2)


def test_more_users_with_more_noise_each_are_the_same_preview():
    one, ten = predict(MEASURED, 240, 24 * 0.2, 10), predict(MEASURED, 249, 24 * 0.2, 10)
    assert one.mean == ten.mean == pytest.approx(70.0)
    assert one.simulated == 8


def test_larger_cohorts_use_the_largest_that_was_simulated():
    assert predict(MEASURED, 320, 3.2, 10).mean == 150.0


def test_less_noise_than_measured_counts_as_the_least():
    assert predict(MEASURED, 80, 1e-6, 10).mean == 110.0


@pytest.mark.parametrize(
    ("users", "z", "rounds"),
    [(80, 8 * 0.5, 10), (70, 0.7, 10), (80, 0.8, 11)],
    ids=["more noise", "smaller cohorts", "other rounds"],
)
def test_nothing_is_predicted_where_nothing_was_measured(users, z, rounds):
    assert predict(MEASURED, users, z, rounds) is None


def test_the_best_split():
    assert best(MEASURED, 320, 8 * 0.1).rounds == 40  # little noise: more rounds
    assert best(MEASURED, 320, 8 * 0.4).rounds == 10  # much: larger cohorts
    assert best(MEASURED, 79, 1.0) is None
    assert best([], 1000, 1.0) is None


@given(users=st.integers(10, 10**6), z=st.floats(1e-4, 100.0), more=st.integers(1, 50))
def test_with_decreasing_returns_more_users_never_predict_less(users, z, more):
    only = [one for one in MEASURED if one.users == 8]
    few, many = best(only, users, z), best(only, users * more, z)
    if few is not None:
        assert many is not None
        assert many.mean >= few.mean - 1e-9
        assert math.isfinite(many.mean)


def test_only_runs_with_the_same_settings_count(tmp_path):
    folder = tmp_path / "dppg" / "frontier"
    folder.mkdir(parents=True)
    common = {"privacy.mechanism": "correlated", "algo.lr": 0.1, "privacy.users_per_round": 4}
    rows = [
        ("cartpole", 1.0, 9.0), ("cartpole", 1.0, 11.0), ("cartpole", 2.0, 99.0), ("acrobot", 1.0, 5.0),
    ]  # fmt: skip
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["algo", "env", "settings", "value", "rounds", "seed"])
        for seed, (env, clip, value) in enumerate([*rows, *rows]):
            kept = common | {"privacy.clip": clip, "privacy.z": 2.0}
            writer.writerow(["dppg", env, json.dumps(kept), value, 7, seed % len(rows)])
    plan = {"privacy.mechanism": "correlated", "algo.lr": 0.1, "privacy.clip": 1.0}
    plan["algo.metric"] = "euclidean"  # of rows that were made before there was another
    assert points("dppg", "cartpole", plan, tmp_path) == [Point(7, 4, 0.5, (9.0, 11.0))]
    assert points("dppg", "cartpole", plan | {"algo.lr": 0.2}, tmp_path) == []
    assert points("dppg", "cartpole", plan | {"algo.metric": "fisher"}, tmp_path) == []
    assert points("dppg", "cartpole", plan | {"algo.log_std_init": -2.0}, tmp_path) == []


def test_every_row_of_the_store_keeps_what_makes_it_a_preview():
    assert {*_SAME, "algo.lr", "privacy.z", "privacy.users_per_round"} <= {*_KEPT}


def test_a_large_cohort_with_one_noise_hides_no_prediction():
    more = [*MEASURED, Point(10, 64, 0.2, (1.0,))]
    for z in (0.1, 0.15, 0.25, 0.4):  # around that noise, and away from it
        assert predict(MEASURED[:2], 640, 64 * z, 10) is not None
        assert predict(more, 640, 64 * z, 10) is not None
    assert predict(more, 640, 64 * 0.2, 10).mean == 1.0
    assert predict(more, 640, 64 * 0.3, 10).simulated == 8


def test_runs_without_noise_are_no_preview():
    assert predict([Point(10, 8, 0.0, (500.0,))], 80, 1.0, 10) is None


def test_the_figure_is_drawn(tmp_path):
    draw_frontier(MEASURED, "CartPole", 500.0, tmp_path / "cartpole.svg")
    text = (tmp_path / "cartpole.svg").read_text()
    assert text.startswith("<?xml")
    assert predicted(MEASURED, 10_000, 1.0) == 205.0
    assert math.isnan(predicted(MEASURED, 10, 1.0))


def test_the_rule_for_splitting_users_loses_little_on_the_stored_frontiers():
    for env in ("cartpole", "acrobot"):
        lost = frontier.regrets(env)
        assert len(lost) > 50
        assert sum(lost) / len(lost) < 6.0


@given(users=st.integers(1, 10**7), z=st.floats(1e-3, 1e3), clip=st.floats(1e-2, 10.0))
def test_the_rule_gives_more_rounds_to_more_users_and_fewer_to_more_noise(users, z, clip):
    choices = [5, 10, 20, 40]
    one = rounds_by_rule(choices, users, z, clip)
    assert one in choices
    assert (
        rounds_by_rule(choices, 2 * users, z, clip)
        >= one
        >= rounds_by_rule(choices, users, 2 * z, clip)
    )
    if one > min(choices):
        assert z * clip * one / users <= 0.05
        assert users // one >= 16
