"""Dosing against the facts' known answers, a stiff integrator, and itself as a Gymnasium environment.

Numbers: ../shared facts, measured with the original simulator of dosing-rl-gym.
"""

import gymnasium as gym
import numpy as np
import pytest
from helpers import changed, shipped
from scipy.integrate import solve_ivp
from test_slots import assert_same_story

from privrl_bench.envs import dosing
from privrl_bench.envs.dosing import Dosing0Slots, Dosing1Slots, fixed_day, interval, random_day
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.envs.slots import LoopSlots
from privrl_bench.errors import ConfigError

START = np.array([85.0, 33.33, 33.33, 25.0, 25.0, 250.0])


def one(y, u, d):
    return interval(np.asarray(y, float)[:, None], np.array([float(u)]), np.array([float(d)]))[:, 0]


def slope(y, u, d):
    g, x, i, s1, s2, q = y
    return np.array(
        [
            -0.0317 * (g - 291) - 0.029 * x * g + 0.8 * 0.012 / 12 * q + 0.8 / 12 * d,
            0.0123 * (i - x),
            -0.09 * i + u,
            u - 0.18 * s1,
            0.18 * (s1 - s2),
            0.18 * s2 - 0.012 * q,
        ]
    )


def at_rest(glucose, doses):
    """[6, n] states in which all but glucose is steady under constant doses."""
    parts = [doses / rate for rate in (0.09, 0.09, 0.18, 0.18, 0.012)]
    return np.stack([np.broadcast_to(glucose, doses.shape), *parts])


def test_steady_states_stay() -> None:
    doses = np.arange(5.0)
    y = at_rest(np.array([2394.049, 214.618, 112.4385, 76.215853, 57.669752]), doses)
    np.testing.assert_allclose(interval(y, doses, np.full(5, 1000.0)), y, rtol=3e-6)


def test_doses_that_hold_glucose_at_80() -> None:
    meals = np.array([800.0, 950, 1000, 1200, 1632])
    doses = np.array([2.334478, 2.723415, 2.853061, 3.371643, 4.491782])
    found = interval(at_rest(80.0, doses), doses, meals)[0]
    assert found == pytest.approx(80.0, abs=1e-4)


def test_the_first_intervals_of_the_known_day() -> None:
    y = one(START, 3, 1000)
    expected = (76.231426, 33.330134, 33.331978, 18.044157, 20.523641, 260.689728)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    y = one(y, 2.8, 1000)
    expected = (76.398851, 33.241253, 32.014048, 15.966919, 17.117228, 262.705628)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    assert dosing.reward(y[:1])[0] == pytest.approx(0.775888, abs=1e-6)
    y = one(y, 0, 1000)
    assert (y[0], y[2]) == pytest.approx((79.195757, 13.015941), abs=1e-6)
    assert dosing.reward(y[:1])[0] == pytest.approx(0.986915, abs=1e-6)
    y = one(y, 10, 1000)
    assert (y[0], y[2]) == pytest.approx((76.630364, 71.228591), abs=1e-6)
    assert dosing.reward(y[:1])[0] == pytest.approx(0.799882, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_an_interval_equals_a_tight_integration(seed) -> None:
    g = np.random.default_rng(seed)
    y = np.array(
        [g.uniform(20, 400), *g.uniform(0, 110, 2), *g.uniform(0, 55, 2), g.uniform(0, 800)]
    )
    u, d = g.uniform(0, 10), g.uniform(0, 3000)
    slow = solve_ivp(lambda _, y: slope(y, u, d), (0, 10), y, "LSODA", rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(one(y, u, d), slow.y[:, -1], rtol=1e-8, atol=1e-6)


def test_without_insulin_glucose_tends_to_its_base() -> None:
    y = np.array([50.0, 0, 0, 0, 0, 0])
    for _ in range(60):
        y = one(y, 0, 0)
    assert y[0] == pytest.approx(291.0, abs=1e-5)


def test_whole_days_of_a_constant_dose() -> None:
    doses = np.array([0, 2, 2.5, 2.8, 2.9, 3.0, 3.2, 3.5, 4])
    totals = (-138.3822, -122.3284, 4.9053, 81.4380, 91.1226, 86.3336, 55.4307, 7.8558, -99.5493)
    day = fixed_day()
    y, found = np.tile(one(START, 3, day[1])[:, None], 9), np.zeros(9)
    for k in range(1, 144):
        y = interval(y, doses, np.full(9, day[k + 1]))
        found += dosing.reward(y[0])
    assert found == pytest.approx(totals, abs=1e-4)


def test_the_fixed_day() -> None:
    day = fixed_day()
    assert len(day) == 145
    assert day[43:].sum() == 113346
    assert (day[46], day[82], day[118], day[144]) == (1632, 1603, 1593, 986)
    assert (day[:43] == 1000).all()


def test_smoothing() -> None:
    raw = np.full(145, 1000.0)
    raw[43] = 2500.0
    expected = (1031.469, 1153.846, 1241.259, 1293.706, 1311.189)
    found = dosing.smoothed(raw, 1000.0)
    np.testing.assert_allclose(found[39:48], [*expected, *expected[-2::-1]], atol=1e-3)
    np.testing.assert_allclose(np.delete(found, range(39, 48)), 1000.0)
    raw = np.zeros(145)
    raw[70] = 1.0
    response = dosing.smoothed(raw, -1.0)[65:76] * 429
    np.testing.assert_allclose(response, (-36, 9, 44, 69, 84, 89, 84, 69, 44, 9, -36), atol=1e-9)


def test_random_days_have_the_known_moments() -> None:
    rng = np.random.default_rng(0)
    days = np.stack([random_day(rng) for _ in range(1500)])
    assert days.mean() == pytest.approx(1040, abs=15)
    assert days.max(1).mean() == pytest.approx(1384, abs=15)
    assert days.min() >= 800


def test_what_a_patient_shows() -> None:
    slots = make_slots(shipped("dosing0"), 2)
    assert isinstance(slots, Dosing0Slots)
    first = slots.reset(np.arange(2), [1, 2])
    assert first.shape == (2, 9)
    assert (first[:, [6, 8]] == 1000).all()
    assert ((first[:, 7] >= 65) & (first[:, 7] <= 105)).all()  # glucose before the hidden interval
    for k in range(1, 46):
        found = slots.step(np.arange(2), np.full((2, 1), 2.9))
        assert (found.obs[:, 6] == fixed_day()[k + 1]).all()
        assert (found.obs[:, 8] == fixed_day()[k]).all()
        assert np.array_equal(found.obs[:, 7], first[:, 0])
        first = found.obs


@pytest.mark.parametrize(("name", "kind"), [("dosing0", Dosing0Slots), ("dosing1", Dosing1Slots)])
def test_slots_equal_gymnasium_environments_and_a_day_has_143_steps(name, kind) -> None:
    config = shipped(name)
    native, loop = make_slots(config, 5), make_slots(changed(config, backend="loop"), 5)
    assert type(native) is kind
    assert isinstance(loop, LoopSlots)
    assert env_spec(config).max_episode_steps == 143

    def dose(rng, count):
        return rng.uniform(-1, 11, size=(count, 1)).astype(np.float32)

    assert_same_story(native, loop, dose, 450, seed=2, terminates=False)


@pytest.mark.parametrize(
    ("version", "dose", "mean"),
    [(0, 2.9, 88.4), (1, 2.9, 52.5), (0, 0.0, -138.4), (1, 5.0, -136.8)],
)
def test_constant_doses_score_the_known_means(version, dose, mean) -> None:
    config = shipped(f"dosing{version}")
    slots, everyone = make_slots(config, 300), np.arange(300)
    slots.reset(everyone, list(range(300)))
    total = np.zeros(300)
    for _ in range(143):
        found = slots.step(everyone, np.full((300, 1), dose))
        total += found.rewards
    assert found.truncated.all()
    assert total.mean() == pytest.approx(mean, abs=4 * total.std() / 300**0.5 + 0.5)
    assert np.abs(total).max() <= 143


def test_doses_are_cut_at_the_box() -> None:
    slots = make_slots(shipped("dosing0"), 4)
    slots.reset(np.arange(4), [3, 3, 3, 3])
    found = slots.step(np.arange(4), np.array([[-5.0], [0.0], [10.0], [50.0]])).obs
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], found[3])


def test_anybody_can_make_it() -> None:
    env = gym.make("privrl_bench.envs.registry:privrl_bench/Dosing1-v0")
    first, _ = env.reset(seed=5)
    again, _ = env.reset(seed=5)
    other, _ = env.reset()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_it_takes_no_arguments() -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs: Dosing takes none, got foo"):
        env_spec(changed(shipped("dosing1"), kwargs={"foo": 1}))
