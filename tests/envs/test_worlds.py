"""Torch simulators against the slots, which equal Gymnasium bit for bit; no world moves another."""

import numpy as np
import pytest
import torch
from helpers import changed, shipped

from privrl_bench.envs.backends import TENSOR, gym_id
from privrl_bench.envs.registry import make_slots, make_worlds
from privrl_bench.envs.worlds import LANES

CHOICES = {"cartpole": 2, "acrobot": 3, "mountain_car": 3, "riverswim": 2, "chain": 1}
BOXES = {"pendulum": (-2.5, 2.5), "dosing0": (-1.0, 11.0), "dosing1": (-1.0, 11.0)}
ENVS = (*CHOICES, *BOXES)
STEPS = [40_000, pytest.param(10**5, marks=pytest.mark.slow)]


def worlds_of(env, count=LANES):
    return make_worlds(changed(shipped(env), backend="torch"), count, "cpu")


def actions_of(env, rng, count):
    if env in CHOICES:
        return rng.integers(CHOICES[env], size=count)
    return rng.uniform(*BOXES[env], size=(count, 1)).astype(np.float32)


def started(env, count=LANES, seed=0):
    """Worlds at the begin of episodes, and their uniform numbers."""
    worlds = worlds_of(env, count)
    uniforms = torch.rand(worlds.draws, count, generator=torch.Generator().manual_seed(seed))
    worlds.reset(torch.ones(count, dtype=torch.bool), uniforms)
    return worlds, uniforms


def test_every_simulator_of_the_backend_is_tested() -> None:
    assert {gym_id(shipped(env)) for env in ENVS} == set(TENSOR)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("env", ENVS)
def test_steps_equal_those_of_single_environments(env, steps) -> None:
    """Each from the state of the environment: up to one unit in the last place."""
    slots, worlds = make_slots(shipped(env), LANES), worlds_of(env)
    rng, everyone = np.random.default_rng(1), np.arange(LANES)
    slots.reset(everyone, list(range(LANES)))
    ends = 0
    for step in range(-(-steps // LANES)):
        worlds._state = torch.from_numpy(slots._state.copy())
        actions = actions_of(env, rng, LANES)
        expected = slots.step(everyone, actions)
        rewards, terminated = worlds.step(torch.from_numpy(actions))
        obs = worlds.observe()
        assert obs.dtype == torch.float32
        np.testing.assert_allclose(obs, expected.obs, rtol=2e-7, atol=1e-7)
        np.testing.assert_allclose(rewards, expected.rewards, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(worlds._state, slots._state, rtol=1e-13, atol=1e-13)
        assert np.array_equal(terminated, expected.terminated)
        over = np.flatnonzero(expected.terminated | expected.truncated)
        ends += len(over)
        if len(over):
            slots.reset(over, [1000 * step + int(i) for i in over])
    assert ends


@pytest.mark.parametrize("env", ENVS)
def test_episodes_begin_with_the_same_distribution(env) -> None:
    """Means, deviations and extremes of 4,096 first states, in every coordinate."""
    count = 4096
    slots = make_slots(shipped(env), count)
    slots.reset(np.arange(count), list(range(count)))
    worlds, _ = started(env, count)
    for a, b in zip(slots._state, worlds._state.numpy(), strict=True):
        error = 5 * np.hypot(a.std(), b.std()) / np.sqrt(count) + 1e-5
        assert abs(a.mean() - b.mean()) < error
        if error > 1e-4:  # deviations of heavy tails (meals) vary more
            kurtosis = ((a - a.mean()) ** 4).mean() / a.var() ** 2
            assert abs(np.log(a.std() / b.std())) < 5 * np.sqrt(kurtosis / 2 / count) + 1e-3


@pytest.mark.parametrize("env", ENVS)
def test_no_world_moves_another_and_its_place_in_the_array_is_all_that_counts(env) -> None:
    rng = np.random.default_rng(2)
    few, uniforms = started(env)
    many = worlds_of(env, 3 * LANES)
    wide = torch.rand(many.draws, 3 * LANES)
    wide[:, LANES : 2 * LANES] = uniforms
    wide[:, LANES + 5] = 0.9 - 0.8 * uniforms[:, 5]  # another user's world
    many.reset(torch.ones(3 * LANES, dtype=torch.bool), wide)
    others = torch.arange(LANES) != 5
    again = torch.zeros(LANES, dtype=torch.bool)
    again[::7] = True
    for t in range(19):
        actions = actions_of(env, rng, 3 * LANES)
        mine = actions[LANES : 2 * LANES].copy()
        found = many.step(torch.from_numpy(actions))
        mine[5] = actions_of(env, rng, 1)[0]
        own = few.step(torch.from_numpy(mine))
        for x, y in zip((*own, few.observe()), (*found, many.observe()), strict=True):
            assert torch.equal(x[others], y[LANES : 2 * LANES][others])
        if t == 9:
            few.reset(again, uniforms)
            many.reset(torch.cat([~again, again, again]), wide)
