"""All implementations of slots agree; errors of unsupported settings."""

import numpy as np
import pytest
from helpers import changed, own, shipped

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import AcrobotSlots, CartPoleSlots, MountainCarSlots, PendulumSlots
from privrl_bench.envs.locomotion import HalfCheetahSlots, HopperSlots, Walker2dSlots
from privrl_bench.envs.registry import env_spec, make_env, make_slots
from privrl_bench.envs.slots import LoopSlots
from privrl_bench.errors import ConfigError, EnvironmentFailure


def assert_same_story(a, b, choose, rounds, seed, terminates=True) -> None:
    """Random actions in random subsets of slots, with resets at the end of episodes and at random."""
    rng = np.random.default_rng(seed)
    everyone = np.arange(a.count)
    seeds = rng.integers(2**32, size=a.count).tolist()
    assert np.array_equal(a.reset(everyone, seeds), b.reset(everyone, seeds))
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(rounds):
        some = rng.permutation(np.flatnonzero(rng.random(a.count) < 0.8))
        if not len(some):
            continue
        actions = choose(rng, len(some))
        mine, other = a.step(some, actions), b.step(some, actions)
        for x, y in zip(mine, other, strict=True):
            assert np.array_equal(x, y)
        ends["terminated"] += int(mine.terminated.sum())
        ends["truncated"] += int(mine.truncated.sum())
        again = some[mine.terminated | mine.truncated | (rng.random(len(some)) < 0.01)]
        if len(again):
            seeds = rng.integers(2**32, size=len(again)).tolist()
            assert np.array_equal(a.reset(again, seeds), b.reset(again, seeds))
    assert (ends["terminated"] > 0) == terminates
    assert ends["truncated"] > 0


def push(rng, count):
    return rng.integers(2, size=count)


def test_native_cartpole_equals_single_environments_bit_for_bit() -> None:
    config = changed(shipped("cartpole"), max_episode_steps=25)
    native = make_slots(config, 7)
    assert isinstance(native, CartPoleSlots)
    loop = make_slots(changed(config, backend="loop"), 7)
    assert isinstance(loop, LoopSlots)
    assert_same_story(native, loop, push, 600, seed=1)


def test_native_acrobot_equals_single_environments_bit_for_bit() -> None:
    config = changed(shipped("acrobot"), max_episode_steps=150)
    native = make_slots(config, 40)
    assert isinstance(native, AcrobotSlots)
    loop = make_slots(changed(config, backend="loop"), 40)

    def torque(rng, count):
        return rng.integers(3, size=count)

    assert_same_story(native, loop, torque, 300, seed=3, terminates=False)
    # Random actions do not swing up: start anywhere, whirling, to meet the target and the turns.
    rng = np.random.default_rng(5)
    everyone, done = np.arange(40), 0
    for _ in range(20):
        native.reset(everyone, [0] * 40)
        loop.reset(everyone, [0] * 40)
        native._state[:] = (rng.uniform(-1, 1, (40, 4)) * [3.1, 3.1, 12.0, 28.0]).T
        for slot, state in zip(loop._envs, native._state.T, strict=True):
            slot.unwrapped.state = state.copy()
        for _ in range(3):
            actions = torque(rng, 40)
            mine, other = native.step(everyone, actions), loop.step(everyone, actions)
            for x, y in zip(mine, other, strict=True):
                assert np.array_equal(x, y)
            done += int(mine.terminated.sum())
    assert done > 100


def test_native_mountain_car_equals_single_environments_bit_for_bit() -> None:
    config = changed(shipped("mountain_car"), max_episode_steps=60)
    native = make_slots(config, 30)
    assert isinstance(native, MountainCarSlots)
    loop = make_slots(changed(config, backend="loop"), 30)

    def push_anywhere(rng, count):
        return rng.integers(3, size=count)

    assert_same_story(native, loop, push_anywhere, 150, seed=8, terminates=False)
    # From anywhere in the box, to meet both ends.
    rng = np.random.default_rng(5)
    everyone, done, stopped = np.arange(30), 0, 0
    for _ in range(30):
        native.reset(everyone, [0] * 30)
        loop.reset(everyone, [0] * 30)
        native._state[:] = (rng.uniform([-1.2, -0.07], [0.5, 0.07], (30, 2))).T
        for slot, state in zip(loop._envs, native._state.T, strict=True):
            slot.unwrapped.state = state.copy()
        for _ in range(3):
            actions = push_anywhere(rng, 30)
            mine, other = native.step(everyone, actions), loop.step(everyone, actions)
            for x, y in zip(mine, other, strict=True):
                assert np.array_equal(x, y)
            inner = np.array([np.array(e.unwrapped.state) for e in loop._envs]).T
            assert np.array_equal(native._state, inner)
            done += int(mine.terminated.sum())
            stopped += int((native._state[0] == -1.2).sum())
    assert done > 10
    assert stopped > 10


def test_native_pendulum_equals_single_environments_bit_for_bit() -> None:
    config = changed(shipped("pendulum"), max_episode_steps=40)
    native = make_slots(config, 7)
    assert isinstance(native, PendulumSlots)
    loop = make_slots(changed(config, backend="loop"), 7)

    def torque(rng, count):
        return rng.uniform(-3, 3, size=(count, 1)).astype(np.float32)

    assert_same_story(native, loop, torque, 200, seed=4, terminates=False)


@pytest.mark.parametrize(
    ("name", "kind", "torques"),
    [
        ("hopper", HopperSlots, 3),
        ("walker2d", Walker2dSlots, 6),
        ("halfcheetah", HalfCheetahSlots, 6),
    ],
)
def test_locomotion_equals_single_environments_bit_for_bit(name, kind, torques) -> None:
    config = changed(shipped(name), max_episode_steps=15)
    native = make_slots(config, 6)
    assert isinstance(native, kind)
    loop = make_slots(changed(config, backend="loop"), 6)
    assert isinstance(loop, LoopSlots)

    def torque(rng, count):
        return rng.uniform(-1, 1, size=(count, torques)).astype(np.float32)

    assert_same_story(native, loop, torque, 250, seed=6, terminates=name != "halfcheetah")
    native.close()
    loop.close()


def test_an_environment_of_a_package_on_the_path_is_used() -> None:
    config = own("MyEnv")
    spec = env_spec(config)
    assert (spec.obs_dim, spec.discrete, spec.actions, spec.max_episode_steps) == (5, True, 2, 20)
    slots = make_slots(config, 1)
    slots.reset(np.arange(1), [0])
    total = sum(slots.step(np.arange(1), np.ones(1, int)).rewards[0] for _ in range(20))
    assert total == 17.0


def test_choices_that_do_not_start_at_zero_are_shifted() -> None:
    slots = make_slots(own("Clock"), 1)
    slots.reset(np.arange(1), [0])
    for choice in range(2):
        slots.step(np.arange(1), np.array([choice]))  # the environment asserts -1, 0, 1


def test_shaped_observations_and_actions_are_flat_outside() -> None:
    config = own("Point")
    spec = env_spec(config)
    assert (spec.obs_dim, spec.actions) == (2, 2)
    assert spec.action_low.tolist() == [-1.0, 0.0]
    slots = make_slots(config, 3)
    assert slots.reset(np.arange(3), [1, 2, 3]).shape == (3, 2)
    assert slots.step(np.arange(3), np.ones((3, 2))).obs.shape == (3, 2)


def test_observations_in_parts_become_one_vector() -> None:
    config = own("DictObs")
    assert env_spec(config).obs_dim == 5
    obs = make_slots(config, 1).reset(np.arange(1), [0])
    assert obs.tolist() == [[0.5, -0.5, 0.0, 0.0, 1.0]]


def test_an_environment_that_raises_is_reported_in_its_own_words() -> None:
    slots = make_slots(own("Clock", kwargs={"spoiled": "raise"}), 12)
    everyone = np.arange(12)
    slots.reset(everyone, list(range(12)))
    slots.step(everyone, np.zeros(12, dtype=int))
    with pytest.raises(EnvironmentFailure, match="step raised RuntimeError: pump is stuck"):
        slots.step(everyone, np.zeros(12, dtype=int))
    slots.close()


# -- errors of the user ---------------------------------------------------------------------


def problem(config) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        env_spec(config)
    assert "\n" not in str(caught.value)
    return caught.value


def test_an_unknown_id_suggests_the_nearest() -> None:
    error = problem(EnvConfig(id="CartPol-v1"))
    assert error.key == "env.id"
    assert "did you mean CartPole-v1?" in str(error)
    error = problem(own("MyEnw"))
    assert "did you mean MyEnv-v0?" in str(error)


def test_a_package_that_is_not_there_is_named() -> None:
    error = problem(EnvConfig(id="no_such_package:Thing-v0"))
    assert error.key == "env.id"
    assert "no_such_package" in str(error)


@pytest.mark.parametrize("key", ["obs_mean", "obs_std"])
def test_public_constants_of_the_wrong_length_are_counted(key) -> None:
    short = {"obs_mean": None, "obs_std": None, key: [1.0, 2.0]}
    error = problem(changed(shipped("cartpole"), **short))
    assert error.key == f"env.{key}"
    assert "needs 4 numbers" in str(error)
    assert "got 2" in str(error)


def test_public_scaling_without_constants_is_refused() -> None:
    error = problem(EnvConfig(id="CartPole-v1"))
    assert error.key == "env.obs_scaling"
    assert "env.obs_mean" in str(error)


def test_an_unsupported_action_space_is_named() -> None:
    assert "ManyActions has Tuple" in str(problem(own("ManyActions")))


def test_an_environment_without_an_end_needs_a_public_limit() -> None:
    assert problem(own("NoLimit")).key == "env.max_episode_steps"
    config = own("NoLimit", max_episode_steps=9)
    assert env_spec(config).max_episode_steps == 9
    env = make_env(config)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(9)] == [False] * 8 + [True]


def test_unknown_keyword_arguments_are_the_users_mistake() -> None:
    assert problem(own("Clock", kwargs={"spoilt": "x"})).key == "env.kwargs"


@pytest.mark.parametrize(
    ("domain", "task", "key", "near"),
    [("walke", "walk", "env.domain", "walker"), ("walker", "wal", "env.task", "walk")],
)
def test_an_unknown_dm_control_name_suggests_the_nearest(domain, task, key, near) -> None:
    error = problem(EnvConfig(kind="dmc", domain=domain, task=task, obs_scaling="none"))
    assert error.key == key
    assert f"did you mean {near}?" in str(error)
