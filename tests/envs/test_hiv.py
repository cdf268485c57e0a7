"""HIV treatment against the facts' known answers, a stiff integrator, and itself as a Gymnasium environment."""

import numpy as np
import pytest
from helpers import changed, shipped
from scipy.integrate import solve_ivp
from test_slots import assert_same_story

from privrl_bench.envs.hiv import RATES, START, USUAL, HivSlots, after_days, reward, slope
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.envs.slots import LoopSlots
from privrl_bench.errors import ConfigError, EnvironmentFailure

HIV = shipped("hiv")
PATIENT = np.concatenate([START, USUAL])[:, None]
UNHEALTHY = (163572.751783, 4.995424, 11944.943096, 45.599014, 63918.595785, 23.543978)
HEALTHY = (967838.670739, 620.518258, 76.012098, 6.091782, 415.375649, 353108.0351)
UNINFECTED = (1e6, 3198, 0, 0, 0, 10)


def test_public_facts() -> None:
    spec = env_spec(HIV)
    assert (spec.obs_dim, spec.actions, spec.max_episode_steps, spec.discrete) == (6, 4, 200, True)


@pytest.mark.parametrize(
    ("point", "worst"), [(UNHEALTHY, -0.0303554), (HEALTHY, -0.00261838), (UNINFECTED, 3.69897)]
)
def test_fixed_points_and_whether_they_hold(point, worst) -> None:
    y = np.array(point)
    assert np.abs(slope(y, 0) / np.maximum(y, 1)).max() < 2e-6  # six digits of the points are known
    jacobian = np.empty((6, 6))
    for j in range(6):
        h = 1e-5 * max(y[j], 1e-3)
        up, down = y.copy(), y.copy()
        up[j], down[j] = y[j] + h, y[j] - h
        jacobian[:, j] = (slope(up, 0) - slope(down, 0)) / (2 * h)
    assert np.linalg.eigvals(jacobian).real.max() == pytest.approx(worst, rel=2e-5)


def test_rewards_at_the_fixed_points() -> None:
    there = np.array([UNHEALTHY, HEALTHY]).T
    expected = (17152.1183, 353107993.56)
    assert reward(there, np.zeros(2)) == pytest.approx(expected, rel=1e-8)
    costs = reward(there, np.zeros(2))[0] - reward(np.tile(there[:, :1], 4), np.arange(4))
    assert costs == pytest.approx([0, 9800, 180, 9980])


def test_the_right_hand_side_at_the_start() -> None:
    known = (-0.0680696, -0.0295, -0.0287304, -0.25154, 26.7024304, -0.0193754999)
    assert slope(START, 0) == pytest.approx(known, rel=1e-7)


@pytest.mark.slow
def test_the_first_five_days() -> None:
    after = after_days(np.tile(PATIENT, 4), np.arange(4))
    known = (17520.7989, 15354.0364, 22290.0238, 16019.2274)
    assert reward(after, np.arange(4)) == pytest.approx(known, abs=1e-4)
    logs = np.log10(after[:6])
    nothing = (5.213709, 0.698567, 4.077188, 1.659069, 4.805632, 1.378629)
    both = (5.303179, 1.749183, 2.934396, 1.431909, 3.539186, 1.420703)
    assert logs[:, 0] == pytest.approx(nothing, abs=1e-6)
    assert logs[:, 3] == pytest.approx(both, abs=1e-6)
    assert (after[6:] == USUAL[:, None]).all()


def test_five_days_equal_a_stiff_integrators() -> None:
    """Also with other rates, and from a wide range of states."""
    rng = np.random.default_rng(0)
    low, high = np.array(HIV.obs_low), np.array(HIV.obs_high)
    logs = low + (high - low) * rng.uniform(0.2, 0.8, (8, 6))
    rates = USUAL * rng.uniform(0.8, 1.2, (8, 12))
    actions = np.arange(8) % 4
    mine = after_days(np.concatenate([10**logs, rates], axis=1).T, actions)
    for i in range(8):
        done = solve_ivp(
            lambda t, y, i=i: slope(y, actions[i], rates[i]),
            (0, 5),
            10 ** logs[i],
            method="LSODA",
            rtol=1e-11,
            atol=1e-9,
        )
        np.testing.assert_allclose(mine[:6, i], done.y[:, -1], rtol=2e-7)


def test_a_patient_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(1)
    many = PATIENT * rng.uniform(0.7, 1.3, (18, 5))
    actions = rng.integers(4, size=5)
    together = after_days(many, actions)
    for i in range(5):
        alone = after_days(many[:, i : i + 1], actions[i : i + 1])
        assert np.array_equal(alone[:, 0], together[:, i])


def rules(state):
    """[6] actions: four constants, and two by T1* + T2*."""
    ill = state[2, 4:] + state[3, 4:]
    first = 3 if ill[0] > 150 else 2
    second = 3 if ill[1] > 300 else 1 if ill[1] > 100 else 0
    return np.array([0, 1, 2, 3, first, second])


def test_a_thousand_days() -> None:
    state, total, discounted, seen = np.tile(PATIENT, 6), np.zeros(6), np.zeros(6), {}
    for k in range(200):
        actions = rules(state)
        state = after_days(state, actions)
        got = reward(state, actions)
        total += got
        discounted += 0.98**k * got
        seen[k + 1] = got[3], state[4, 3]
    known = (3.43235e6, 3.19241e6, 3.97836e6, 7.02198e6, 2.44656e7, 4.96331e7)
    assert total == pytest.approx(known, rel=2e-6)
    known = (8.44300e5, 9.84064e5, 1.00738e6, 2.00379e6, 1.11892e7, 2.44127e7)
    assert discounted == pytest.approx(known, rel=3e-6)
    assert seen[2][0] == pytest.approx(24721.027, abs=1e-3)
    assert seen[10] == pytest.approx((847.554, 0.422), rel=1e-3)
    assert seen[10][0] == pytest.approx(847.554, abs=1e-3)
    assert seen[200][0] == pytest.approx(27709.901, abs=1e-2)
    assert state[:6, 3] == pytest.approx(
        (774593, 34.2454, 3218.04, 45.1713, 12124.0, 38.9023), rel=2e-6
    )
    assert state[:6, 0] == pytest.approx(UNHEALTHY, rel=1e-6)


def test_slots_equal_the_gymnasium_environment() -> None:
    spread = {"start_spread": 0.1, "rate_spread": 0.2}
    config = changed(HIV, max_episode_steps=6, kwargs=spread)
    native = make_slots(config, 4)
    assert isinstance(native, HivSlots)
    loop = make_slots(changed(config, backend="loop"), 4)
    assert isinstance(loop, LoopSlots)

    def treat(rng, count):
        return rng.integers(4, size=count)

    assert_same_story(native, loop, treat, 40, seed=1, terminates=False)


def test_patients_differ_only_where_asked() -> None:
    def begun(**kwargs):
        slots = make_slots(changed(HIV, kwargs=kwargs), 50)
        slots.reset(np.arange(50), list(range(50)))
        return slots._state / PATIENT

    assert (begun() == 1).all()
    starts = begun(start_spread=0.25)
    assert (np.abs(starts[:6] - 1) <= 0.25).all()
    assert starts[:6].std(1).min() > 0.1
    assert (starts[6:] == 1).all()
    rates = begun(rate_spread=0.1)
    assert (rates[:6] == 1).all()
    assert np.abs(rates[6:] - 1).max(1) == pytest.approx([0.1] * len(RATES), abs=0.02)


@pytest.mark.parametrize(
    ("kwargs", "line"),
    [
        ({"start_spread": 1.0}, r"env.kwargs.start_spread: must be in \[0, 1\)"),
        ({"rate_spread": -0.1}, r"env.kwargs.rate_spread: must be in \[0, 1\)"),
        ({"spread": 1}, "env.kwargs: unknown for hiv: spread"),
    ],
)
def test_wrong_settings(kwargs, line) -> None:
    with pytest.raises(ConfigError, match=f"^{line}"):
        make_slots(changed(HIV, kwargs=kwargs), 1)


def test_a_state_that_is_none() -> None:
    with pytest.raises(EnvironmentFailure, match="does not stay finite"):
        after_days(PATIENT * np.nan, np.array([0]))
