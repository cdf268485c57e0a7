"""Known results of the simulators, through the slots of training."""

import math

import numpy as np
import pytest
from helpers import changed, shipped

from privrl_bench.envs.registry import env_spec, make_env, make_slots


def play(config, seeds, policy):
    """Returns, lengths and the last terminated and truncated flags of one episode per seed."""
    slots = make_slots(config, len(seeds))
    obs = slots.reset(np.arange(len(seeds)), list(seeds))
    returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), dtype=int)
    terminated, truncated = np.zeros((2, len(seeds)), dtype=bool)
    going = np.arange(len(seeds))
    while len(going):
        result = slots.step(going, policy(obs[going]))
        returns[going] += result.rewards
        lengths[going] += 1
        obs[going] = result.obs
        terminated[going], truncated[going] = result.terminated, result.truncated
        going = going[~(result.terminated | result.truncated)]
    slots.close()
    return returns, lengths, terminated, truncated


def at_state(config, state):
    """One environment put into a state of a classic-control task."""
    env = make_env(config)
    env.reset(seed=0)
    env.unwrapped.state = np.array(state, dtype=float)
    return env


def test_cartpole_takes_the_known_steps() -> None:
    config = changed(shipped("cartpole"), backend="loop")
    for action, expected in [
        (1, (0, 0.19437055, 0.05, -0.27649758)),
        (0, (0, -0.19580204, 0.05, 0.30802989)),
    ]:
        obs, reward, terminated, *_ = at_state(config, (0, 0, 0.05, 0)).step(action)
        assert obs == pytest.approx(expected, abs=1e-7)
        assert (reward, terminated) == (1.0, False)


def test_cartpole_pushed_one_way_from_rest_falls_at_step_nine() -> None:
    slots = make_slots(shipped("cartpole"), 2)
    slots.reset(np.arange(2), [0, 1])
    slots._state[:] = 0.0
    for step in range(1, 10):
        result = slots.step(np.arange(2), np.array([0, 1]))
        assert result.terminated.tolist() == [step == 9] * 2
        assert result.rewards.tolist() == [1.0, 1.0]
    final = np.array([0.14065097, 1.76038113, -0.21518605, -2.77788649])
    assert result.obs == pytest.approx(np.stack([-final, final]), abs=1e-7)


def test_the_cartpole_rule_of_thumb_scores_497_and_is_cut_at_500() -> None:
    def rule(obs):
        return (obs[:, 2] + obs[:, 3] > 0).astype(int)

    returns, lengths, terminated, truncated = play(shipped("cartpole"), range(50), rule)
    assert returns.mean() == pytest.approx(496.7, abs=0.05)
    assert np.array_equal(returns, lengths)
    assert np.array_equal(truncated, lengths == 500)
    assert not (terminated & (lengths == 500)).any()


def test_acrobot_takes_the_known_steps() -> None:
    env = at_state(shipped("acrobot"), (0, 0, 0, 0))
    env.step(2)
    first = (-0.01326297, 0.03428723, -0.12866185, 0.33450109)
    assert env.unwrapped.state == pytest.approx(first, abs=1e-8)
    for _ in range(4):
        obs, reward, *_ = env.step(2)
    t1, t2, *speeds = (-0.152156, 0.47010766, -0.03346613, 0.33745526)
    expected = (math.cos(t1), math.sin(t1), math.cos(t2), math.sin(t2), *speeds)
    assert obs == pytest.approx(expected, abs=1e-6)
    assert reward == -1.0
    still = at_state(shipped("acrobot"), (0, 0, 0, 0))
    assert still.step(1)[0] == pytest.approx((1, 0, 1, 0, 0, 0), abs=1e-12)


def test_acrobot_pushed_against_its_first_joint_scores_83_and_a_half() -> None:
    def against(obs):
        return np.where(obs[:, 4] > 0, 0, 2)

    returns, lengths, terminated, _ = play(shipped("acrobot"), range(50), against)
    assert returns.mean() == pytest.approx(-83.5, abs=1.5)  # the facts name no seeds
    assert terminated.all()
    assert np.array_equal(returns, -(lengths - 1.0))  # the last step costs nothing
    with_it, lengths, _, truncated = play(
        shipped("acrobot"), range(2), lambda o: np.where(o[:, 4] > 0, 2, 0)
    )
    assert (with_it.tolist(), lengths.tolist()) == ([-500.0] * 2, [500] * 2)
    assert truncated.all()


@pytest.mark.parametrize(
    ("state", "push", "reward", "after"),
    [
        ((math.pi, 0), 0.0, -(math.pi**2), None),
        ((0.1, 0), 2.0, -0.014, (0.11874375, 0.37487506)),
        ((1, 1), 3.0, -1.104, (1.09655516, 1.93110324)),
        ((0, 0), 0.0, 0.0, (0, 0)),
    ],
)
def test_pendulum_takes_the_known_steps(state, push, reward, after) -> None:
    env = at_state(shipped("pendulum"), state)
    obs, got, terminated, *_ = env.step(np.array([push], dtype=np.float32))
    assert got == pytest.approx(reward, abs=1e-6)
    assert not terminated
    if after is not None:
        angle, speed = after
        assert obs == pytest.approx((math.cos(angle), math.sin(angle), speed), abs=1e-6)


def test_pendulum_ends_by_its_time_limit_only() -> None:
    result = play(shipped("pendulum"), range(3), lambda o: np.zeros((len(o), 1)))
    _, lengths, terminated, truncated = result
    assert lengths.tolist() == [200] * 3
    assert truncated.all()
    assert not terminated.any()


def test_mountain_car_takes_the_known_step_and_climbs_in_the_known_times() -> None:
    config = changed(shipped("mountain_car"), backend="loop")
    obs, reward, *_ = at_state(config, (-0.5, 0)).step(2)
    assert obs == pytest.approx((-0.49917684300, 0.00082315700), abs=1e-7)
    assert reward == -1.0
    slots = make_slots(shipped("mountain_car"), 1)
    slots.reset(np.arange(1), [0])
    slots._state[:, 0] = (-0.5, 0)
    after = slots.step(np.arange(1), np.array([2]))
    assert slots._state[:, 0] == pytest.approx((-0.49917684300, 0.00082315700), abs=5e-12)
    assert (after.rewards[0], after.terminated[0]) == (-1.0, False)
    taken = []
    for start in (-0.6, -0.55, -0.5, -0.45, -0.4):
        env = at_state(config, (start, 0))
        speed, steps, over = 0.0, 0, False
        while not over:
            obs, _, over, cut, _ = env.step(2 if speed >= 0 else 0)
            assert not cut
            speed, steps = obs[1], steps + 1
        taken.append(steps)
    assert taken == [113, 115, 124, 121, 122]


# The facts were measured with mujoco 4.0.0; mujoco 3.17 gives the same digits.
@pytest.mark.parametrize(
    ("name", "gym_id", "value", "steps", "falls"),
    [
        ("halfcheetah", "HalfCheetah-v5", 0.244743, 1000, False),
        ("hopper", "Hopper-v4", 132.172744, 141, True),
        ("hopper", "Hopper-v5", 131.172744, 141, True),
    ],
)
def test_doing_nothing_in_mujoco_scores_the_known_value(name, gym_id, value, steps, falls) -> None:
    config = changed(shipped(name), id=gym_id)
    size = env_spec(config).actions
    returns, lengths, terminated, truncated = play(config, [0], lambda o: np.zeros((1, size)))
    assert returns[0] == pytest.approx(value, abs=2e-6)
    assert (lengths[0], terminated[0], truncated[0]) == (steps, falls, not falls)


def test_halfcheetah_takes_the_known_step_from_rest() -> None:
    env = make_env(shipped("halfcheetah"))
    env.reset(seed=0)
    env.unwrapped.set_state(np.zeros(9), np.zeros(9))
    _, reward, _, _, info = env.step(np.ones(6, dtype=np.float32))
    assert reward == pytest.approx(0.318091, abs=1e-6)
    assert info["x_position"] == pytest.approx(0.045905, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cartpole", (4, 2, 500)),
        ("acrobot", (6, 3, 500)),
        ("mountain_car", (2, 3, 200)),
        ("chain", (39, 1, 200)),
        ("hiv", (6, 4, 200)),
        ("pendulum", (3, 1, 200)),
        ("halfcheetah", (17, 6, 1000)),
        ("hopper", (11, 3, 1000)),
        ("walker2d", (17, 6, 1000)),
        ("ant", (27, 8, 1000)),
        ("cartpole_balance", (5, 1, 1000)),
        ("cartpole_swingup", (5, 1, 1000)),
    ],
)
def test_public_facts_of_the_shipped_environments(name, sizes) -> None:
    spec = env_spec(shipped(name))
    assert (spec.obs_dim, spec.actions, spec.max_episode_steps) == sizes


# -- dm_control -----------------------------------------------------------------------------


def test_swingup_starts_hanging_and_pays_nothing_there() -> None:
    slots = make_slots(shipped("cartpole_swingup"), 2)
    obs = slots.reset(np.arange(2), [0, 1])
    assert obs[:, 1] == pytest.approx(-1.0, abs=2e-3)  # cosine
    assert not np.array_equal(obs[0], obs[1])
    assert slots.step(np.arange(2), np.zeros((2, 1))).rewards == pytest.approx(0.0, abs=1e-3)
    slots.close()


@pytest.mark.parametrize("name", ["cartpole_swingup", "hopper"])
def test_a_seed_brings_the_same_episode_back_in_a_used_slot(name) -> None:
    config = shipped(name)
    size = env_spec(config).actions
    moves = np.random.default_rng(0).uniform(-1, 1, (20, 1, size)).astype(np.float32)
    slots = make_slots(config, 1)
    first = slots.reset(np.arange(1), [7])
    path = [slots.step(np.arange(1), a) for a in moves]
    assert np.array_equal(first, slots.reset(np.arange(1), [7]))
    for a, old in zip(moves, path, strict=True):
        new = slots.step(np.arange(1), a)
        assert np.array_equal(new.obs, old.obs)
        assert np.array_equal(new.rewards, old.rewards)
    slots.close()
