"""RiverSwim against dynamic programming's known answers (../shared facts), and simulated against exact."""

import numpy as np
import pytest
from helpers import changed, shipped
from test_slots import assert_same_story

from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.envs.tabular import HORIZON, RiverSwimSlots, model
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.evaluation.tabular import backward, optimal_value, policy_value

KINDS = [("swim", 0.6), ("swim", 0.9), ("stay", 0.6), ("stay", 0.9)]


def always(q):
    """[H, 6, 2] right with probability q."""
    return np.broadcast_to(np.array([1 - q, q]), (HORIZON, 6, 2))


def solve(p, pays="swim"):
    found = model(p, pays=pays)
    return (found.transitions, found.rewards, found.start, found.horizon)


@pytest.mark.parametrize(
    ("kind", "best", "right", "uniform"),
    [
        (KINDS[0], 3.397264, 3.39663698, 0.04378902),
        (KINDS[1], 5.195140, 5.19452444, 0.04677336),
        (KINDS[2], 2.038623, 2.03798219, 0.03809312),
        (KINDS[3], 4.675691, 4.67507200, 0.04505072),
    ],
    ids=str,
)
def test_values(kind, best, right, uniform) -> None:
    tables = solve(kind[1], kind[0])
    assert optimal_value(*tables) == pytest.approx(best, abs=1e-6)
    assert policy_value(*tables, always(1.0)) == pytest.approx(right, abs=1e-8)
    assert policy_value(*tables, always(0.5)) == pytest.approx(uniform, abs=1e-8)
    assert policy_value(*tables, always(0.0)) == pytest.approx(0.1, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "values"),
    [
        (0.6, (3.397264, 4.052651, 5.301868, 6.678367, 8.094000, 9.521445)),
        (0.9, (5.195140, 6.292996, 8.408335, 10.774090, 13.232648, 15.724899)),
    ],
)
def test_best_values_of_every_state_and_when_to_turn_back(p, values) -> None:
    found = model(p)
    q = backward(found.transitions, found.rewards, found.horizon)
    np.testing.assert_allclose(q[0].max(-1), values, atol=1e-6)
    assert q[:, 0].argmax(-1).tolist() == [1] * 14 + [0] * 6


@pytest.mark.parametrize(
    ("q", "value"), [(0.25, 0.062380), (0.75, 0.388187), (0.9, 1.598644), (0.95, 2.376785)]
)
def test_a_valley_between_left_and_right(q, value) -> None:
    assert policy_value(*solve(0.6), always(q)) == pytest.approx(value, abs=1e-6)


def test_the_authors_start_and_wrong_settings() -> None:
    assert model(start="second_or_third").start.tolist() == [0, 0.5, 0.5, 0, 0, 0]
    for wrong in ({"p": 1.5}, {"pays": "always"}, {"start": "last"}):
        with pytest.raises(ConfigError, match=f"env.kwargs.{next(iter(wrong))}"):
            model(**wrong)
    with pytest.raises(ConfigError, match="slope"):
        env_spec(changed(shipped("riverswim"), kwargs={"slope": 1}))


@pytest.mark.parametrize(("pays", "p"), KINDS)
def test_simulated_returns_have_the_exact_mean(pays, p) -> None:
    config = changed(shipped("riverswim"), kwargs={"p": p, "pays": pays})
    slots, everyone = make_slots(config, 4000), np.arange(4000)
    assert isinstance(slots, RiverSwimSlots)
    slots.reset(everyone, list(range(4000)))
    total, place = np.zeros(4000), np.zeros((HORIZON + 1, 6))
    for _ in range(HORIZON):
        found = slots.step(everyone, np.ones(4000, dtype=np.int64))
        total += found.rewards
    assert found.truncated.all()
    exact = policy_value(*solve(p, pays), always(1.0))
    assert total.mean() == pytest.approx(exact, abs=4 * total.std() / 4000**0.5)
    place = found.obs.mean(0)
    if p == 0.6:
        law = (0.001085, 0.009182, 0.029850, 0.097829, 0.468712, 0.393341)
        np.testing.assert_allclose(place, law, atol=0.035)


def test_slots_equal_gymnasium_environments() -> None:
    config = shipped("riverswim")
    native, loop = make_slots(config, 9), make_slots(changed(config, backend="loop"), 9)

    def swim(rng, count):
        return rng.integers(2, size=count)

    assert_same_story(native, loop, swim, 120, seed=2, terminates=False)
    everyone, left = np.arange(9), np.zeros(9, dtype=np.int64)
    native.reset(everyone, [0] * 9)
    for _ in range(20):
        native.step(everyone, left)
    with pytest.raises(EnvironmentFailure, match="at most 20"):
        native.step(everyone, left)
