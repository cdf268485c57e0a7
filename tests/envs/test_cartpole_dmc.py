"""dm_control's cartpole over arrays against dm_control itself, inside the rail and at its stops."""

import math

import numpy as np
import pytest
from helpers import changed, shipped

from privrl_bench.envs.cartpole_dmc import BalanceSlots, SwingupSlots
from privrl_bench.envs.registry import make_env, make_slots
from privrl_bench.envs.slots import LoopSlots

STEP, PATH = 1e-9, 1e-7  # equality of one step, and of 300 steps without correction
TASKS = {"cartpole_balance": BalanceSlots, "cartpole_swingup": SwingupSlots}


@pytest.fixture(scope="module")
def single():
    """dm_control's step of balance from any state [6]."""
    env = make_env(shipped("cartpole_balance"))

    def step(state, push):
        env.reset(seed=0)
        physics = env.unwrapped._env.physics
        with physics.reset_context():
            physics.data.qpos[:], physics.data.qvel[:] = state[:2], state[2:4]
        physics.data.qacc_warmstart[:] = state[4:]
        obs, reward, *_ = env.step(np.array([push]))
        return np.append(obs, reward)

    yield step
    env.close()


def step_from(states, pushes):
    """[n, 6] observations and rewards of one step of the slots from `states` [4 or 6, n]."""
    count = len(pushes)
    slots = make_slots(shipped("cartpole_balance"), count)
    slots._state[: len(states)] = states
    found = slots.step(np.arange(count), np.asarray(pushes, dtype=float)[:, None])
    return np.column_stack([found.obs, found.rewards])


def play(config, count, policy, steps=1000):
    """Returns [count] of episodes with the seeds 0, 1, ...; `policy` takes observations."""
    slots, everyone = make_slots(config, count), np.arange(count)
    obs, total = slots.reset(everyone, list(range(count))), np.zeros(count)
    for step in range(1, steps + 1):
        obs, rewards, terminated, truncated = slots.step(everyone, policy(obs))
        assert ((rewards >= 0.0) & (rewards <= 1.0)).all()
        assert not terminated.any()
        assert (truncated == (step == steps)).all()
        total += rewards
    return total


@pytest.mark.parametrize(("name", "kind"), TASKS.items())
def test_the_registry_uses_the_arrays_where_they_are_the_task(name, kind) -> None:
    config = shipped(name)
    assert isinstance(make_slots(config, 2), kind)
    assert isinstance(make_slots(changed(config, backend="loop"), 1), LoopSlots)
    assert isinstance(make_slots(changed(config, task="balance_sparse"), 1), LoopSlots)
    rendered = changed(config, kwargs={"render_kwargs": {"width": 64}})
    assert isinstance(make_slots(rendered, 1), LoopSlots)


def test_the_model_has_the_published_constants() -> None:
    slots = make_slots(shipped("cartpole_balance"), 1)
    moment, inertia = 0.1 * 0.5, 0.009424592767295598 + 0.1 * 0.5**2
    found = (slots._total, slots._moment, slots._inertia, slots._weight, slots._gear)
    assert found == pytest.approx((1.1, moment, inertia, 9.81 * moment, 10.0), rel=1e-12)
    assert (slots._rail, slots._dt, *slots._range) == (1.8, 0.01, -1.0, 1.0)
    assert slots._damping.tolist() == [5e-4, 2e-6]


@pytest.mark.parametrize(
    ("state", "push", "after", "reward"),
    [
        ((0, 0, 0, 0), 1, (0.00048668, -0.00070696, 0.09733660, -0.14141007), 0.79926381),
        ((0, 0.1, 0, 0), 0, (-0.00000344, 0.10007611, -0.00068851, 0.01522342), 0.99748764),
        (
            (0.5, 0.3, 0.2, -0.4),
            -0.5,
            (0.50174854, 0.29655875, 0.14970813, -0.28831655),
            0.86327766,
        ),
        ((0, 0, 0, 0), 0, (0, 0, 0, 0), 1.0),
        ((0, math.pi, 0, 0), 0, (0, math.pi, 0, 0), 0.0),
    ],
)
def test_known_steps(state, push, after, reward) -> None:
    x, angle, speed, rate = after
    expected = (x, math.cos(angle), math.sin(angle), speed, rate, reward)
    assert step_from(np.array([state]).T, [push])[0] == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize(
    ("near", "far", "speed"),
    [(0.0, 1.5, 4.0), (1.5, 1.9, 8.0), (1.799, 1.801, 0.2), (1.8, 2.5, 8.0)],
)
def test_one_step_from_the_same_state_is_mujocos_on_the_rail_and_beyond(
    near, far, speed, single
) -> None:
    rng, count = np.random.default_rng(0), 200
    x = rng.uniform(near, far, count) * rng.choice([-1.0, 1.0], count)
    angle, rate = rng.uniform(-7, 7, count), rng.uniform(-15, 15, count)
    warm = rng.normal(0, 10, (2, count))
    states = np.stack([x, angle, rng.uniform(-speed, speed, count), rate, *warm])
    pushes = rng.uniform(-1.5, 1.5, count)  # beyond 1 they are cut
    expected = np.stack([single(s, u) for s, u in zip(states.T, pushes, strict=True)])
    worst = np.abs(step_from(states, pushes) - expected).max()
    print("worst", worst)
    assert worst < STEP


def test_only_a_step_that_reaches_a_stop_is_handed_to_mujoco(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(BalanceSlots, "_bump", lambda self, state, u: calls.append(state[0]) or 0.0)
    states = np.array([[1.79, 0, 0, 0], [1.79, 0, 2, 0], [-1.79, 0, 2, 0], [-1.9, 0, 0, 0]]).T
    step_from(states, [0.0] * 4)
    assert calls == [1.79, -1.9]
    # A stage within the step crosses although the step itself ends inside.
    assert step_from(np.array([[1.7999, 0, 0.021, 0]]).T, [-1.0])[0, 0] == 0.0


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("name", TASKS)
def test_whole_trajectories_are_dm_controls(name) -> None:
    config, seeds = shipped(name), [0, 1, 12345, 2**32 - 1]
    count, everyone = len(seeds), np.arange(4)
    mine, other = make_slots(config, count), make_slots(changed(config, backend="loop"), count)
    first = mine.reset(everyone, seeds)
    assert np.abs(first - other.reset(everyone, seeds)).max() < 1e-15
    data = [env.unwrapped._env.physics.data for env in other._envs]
    assert mine._state[:2].T.tolist() == [d.qpos.tolist() for d in data]
    assert mine._state[2:4].T.tolist() == [d.qvel.tolist() for d in data]
    rng, worst, bumps = np.random.default_rng(1), 0.0, 0
    # The last two slots are pushed to the right for a while, into the stop.
    for step in range(300):
        pushes = rng.uniform(-1, 1, (count, 1))
        pushes[2:] += 0.5 if step < 150 else 0.0
        a, b = mine.step(everyone, pushes), other.step(everyone, pushes)
        worst = max(worst, np.abs(a.obs - b.obs).max(), np.abs(a.rewards - b.rewards).max())
        bumps += int((a.obs[:, 0] > 1.8).sum())
    print("worst", worst, "steps beyond the rail", bumps)
    assert worst < PATH
    assert bumps > 0


@pytest.mark.parametrize("name", TASKS)
def test_slots_are_independent(name) -> None:
    """The same seeds and actions in other slots and other subsets: equal bit for bit."""
    config, steps = shipped(name), 250
    seeds = list(range(11))
    pushes = np.random.default_rng(2).uniform(-1, 1, (steps, 11, 1))
    pushes[:150] += 0.4
    full, part = make_slots(config, 11), make_slots(config, 20)
    places = np.random.default_rng(3).permutation(20)[:11]
    assert np.array_equal(full.reset(np.arange(11), seeds), part.reset(places, seeds))
    beyond = False
    for t in range(steps):
        a = full.step(np.arange(11), pushes[t])
        for some in ([7, 0], [3], [1, 2, 4, 5, 6, 8, 9, 10]):
            b = part.step(places[some], pushes[t, some])
            assert np.array_equal(a.obs[some], b.obs)
            assert np.array_equal(a.rewards[some], b.rewards)
        beyond = beyond or bool((np.abs(a.obs[:, 0]) > 1.8).any())
    assert beyond
    again = part.reset(places[[3]], [3])
    assert np.array_equal(again, full.reset(np.array([3]), [3]))
    assert part._elapsed[places].tolist() == [250] * 3 + [0] + [250] * 7
    assert part._elapsed.sum() == 2500  # the other nine never moved


@pytest.mark.parametrize(("asked", "max_episode_steps"), [(30, 30), (2000, 1000)])
def test_episodes_are_cut_where_dm_control_cuts_them(asked, max_episode_steps) -> None:
    config = changed(shipped("cartpole_balance"), max_episode_steps=asked)
    play(config, 2, lambda o: np.zeros((len(o), 1)), max_episode_steps)
    other = make_slots(changed(config, backend="loop"), 1)
    other.reset(np.arange(1), [0])
    cut = [
        bool(other.step(np.arange(1), np.zeros((1, 1))).truncated[0])
        for _ in range(max_episode_steps)
    ]
    assert cut == [False] * (max_episode_steps - 1) + [True]


def test_known_returns() -> None:
    rng = np.random.default_rng(0)
    balance, swingup = shipped("cartpole_balance"), shipped("cartpole_swingup")

    def nothing(obs):
        return np.zeros((len(obs), 1))

    def random(obs):
        return rng.uniform(-1, 1, (len(obs), 1))

    def linear(obs):
        return np.clip(np.stack([obs @ [0.1, 0.0, 3.0, 0.25, 0.8]], axis=-1), -1, 1)

    still = play(balance, 60, nothing)
    assert still[:5].mean() == pytest.approx(747.5, abs=4 * 25 / math.sqrt(5))
    assert still.mean() == pytest.approx(747.5, abs=4 * 25 / math.sqrt(60))
    assert play(balance, 40, random).mean() == pytest.approx(356, abs=4 * 50 / math.sqrt(40))
    assert play(balance, 5, linear).mean() == pytest.approx(999.5, abs=0.5)
    assert play(swingup, 5, nothing).max() < 1.0
    swung = play(swingup, 40, random)
    assert swung.mean() == pytest.approx(24, abs=4 * 20 / math.sqrt(40))
    assert swung.mean() < 60
