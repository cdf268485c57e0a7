"""MuJoCo Warp on the CPU against MuJoCo's C simulator. Compiling takes a minute once."""

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from helpers import changed, shipped
from on_device_runs import of, trained

from privrl_bench.composition.compose import compose
from privrl_bench.envs.backends import WARP, gym_id
from privrl_bench.envs.construction import make_env
from privrl_bench.envs.registry import make_worlds
from privrl_bench.envs.worlds import LANES
from privrl_bench.errors import EnvironmentFailure

pytest.importorskip("mujoco_warp")
pytestmark = pytest.mark.slow

GYM = ("hopper", "halfcheetah", "walker2d", "ant")
# Steps of random actions, and the largest difference of positions after them. Contacts make it grow: Ant's
# differ by hundredths from the first ones on (docs/gpu.md).
DMC = ("cartpole_balance", "cartpole_swingup", "pendulum_swingup")
FOLLOWED = {
    **{"hopper": (50, 1e-4), "halfcheetah": (10, 1e-4), "walker2d": (20, 1e-4), "ant": (2, 1e-6)},
    **dict.fromkeys(DMC, (50, 1e-4)),
}


def config_of(name):
    if name == "pendulum_swingup":
        words = ("env=dmc", "env.domain=pendulum", "env.task=swingup", "algo=dppg")
        return changed(compose(words).env, backend="warp")
    return changed(shipped(name), backend="warp")


def worlds_of(name):
    return make_worlds(config_of(name), LANES, "cpu")


def started(name, seed=0):
    worlds = worlds_of(name)
    uniforms = torch.rand(worlds.draws, LANES, generator=torch.Generator().manual_seed(seed))
    worlds.reset(torch.ones(LANES, dtype=torch.bool), uniforms)
    return worlds, uniforms


def controls(rng, worlds):
    return torch.from_numpy(rng.uniform(-1, 1, (LANES, worlds._ctrl.shape[1])).astype(np.float32))


def single(name):
    """The single environment, and its model and data."""
    env = make_env(changed(config_of(name), backend="auto"))
    env.reset(seed=0)
    inner = env.unwrapped
    if name in GYM:
        return env, inner.model, inner.data
    physics = inner._env.physics
    return env, physics.model._model, physics.data._data


def place(env, data, qpos, qvel):
    """Put the single environment into a state."""
    inner = env.unwrapped
    if hasattr(inner, "set_state"):
        inner.set_state(np.array(qpos, dtype=float), np.array(qvel, dtype=float))
        return
    physics = inner._env.physics
    with physics.reset_context():
        physics.data.qpos[:], physics.data.qvel[:] = qpos, qvel


def test_every_environment_of_the_backend_is_tested() -> None:
    assert {gym_id(config_of(name)) for name in FOLLOWED} == set(WARP)


@pytest.mark.parametrize("name", FOLLOWED)
def test_worlds_follow_the_c_simulator(name) -> None:
    worlds, _ = started(name)
    env, model, _ = single(name)
    steps, most = FOLLOWED[name]
    rng, count = np.random.default_rng(3), 4
    there = [mujoco.MjData(model) for _ in range(count)]
    for i, data in enumerate(there):
        data.qpos[:], data.qvel[:] = worlds.qpos[i].double(), worlds.qvel[i].double()
    skip = getattr(env.unwrapped, "frame_skip", 1)
    for _ in range(steps):
        actions = controls(rng, worlds)
        worlds.step(actions)
        for data, action in zip(there, actions, strict=False):
            data.ctrl[:] = action
            mujoco.mj_step(model, data, skip)
    for i, data in enumerate(there):
        assert np.abs(worlds.qpos[i].numpy() - data.qpos).max() < most
    worlds.check()


@pytest.mark.parametrize("name", FOLLOWED)
def test_observations_rewards_and_ends_equal_those_of_single_environments(name) -> None:
    """On equal states: to one unit in the last place in double precision, to 1e-6 in single precision."""
    worlds, _ = started(name)
    env, _, data = single(name)
    rng = np.random.default_rng(4)
    for t in range(40):
        actions = controls(rng, worlds)
        worlds.step(actions)
        if t % 4:
            continue
        qpos, qvel = worlds.qpos[0].double().numpy(), worlds.qvel[0].double().numpy()
        place(env, data, qpos, qvel)
        before = env.unwrapped.data.qpos[0] if name in GYM else 0.0
        if name == "ant":
            before = data.xpos[1, 0]
        expected, reward, ended, _, _ = env.step(actions[0].numpy())
        for dtype, most in ((torch.float64, 2.3e-16), (torch.float32, 1e-6)):
            # The environment's own next state.
            state = [torch.tensor(np.array(x)[None], dtype=dtype) for x in (data.qpos, data.qvel)]
            obs = worlds.observation(*state)
            np.testing.assert_allclose(obs[0], expected, rtol=most, atol=most)
        place_, speed = (torch.tensor(np.array(x)[None]) for x in (data.qpos, data.qvel))
        if name in GYM:
            healthy = worlds.healthy(place_, speed)
            assert bool(~healthy & getattr(worlds.env, "_terminate_when_unhealthy", False)) == ended
            after = data.xpos[1, 0] if name == "ant" else data.qpos[0]
            if name == "ant":
                worlds._forces = torch.tensor(np.array(data.cfrc_ext)[None])
            found = worlds.reward(
                torch.tensor([before]), torch.tensor([after]), healthy, actions[:1]
            )
        else:
            found = worlds.reward(place_, speed, actions[:1, 0].double())
        # Gymnasium adds the squares of Ant's eight controls in single precision in another order.
        most = 1e-7 if name == "ant" else 1e-13
        assert float(found) == pytest.approx(float(reward), rel=most, abs=most)


def test_rewards_of_ant_have_the_forces_of_contacts() -> None:
    worlds, _ = started("ant")
    env, _, _ = single("ant")
    assert isinstance(env.unwrapped, gym.Env)
    costs = []
    for _ in range(30):
        before = worlds.place().double()
        actions = controls(np.random.default_rng(1), worlds)
        rewards, _ = worlds.step(actions)
        healthy = worlds.healthy(worlds.qpos, worlds.qvel)
        free = (worlds.place().double() - before) / worlds.env.dt + healthy * 1.0
        costs.append(free - 0.5 * actions.square().sum(-1) - rewards)
    assert max(float(x.max()) for x in costs) > 1e-4
    assert min(float(x.min()) for x in costs) > -1e-6


@pytest.mark.parametrize("name", ["hopper", "halfcheetah", "ant", "cartpole_swingup"])
def test_no_world_moves_another(name) -> None:
    """One world has other states and actions; all others are equal bit for bit, with contacts and resets."""
    worlds, uniforms = started(name)
    others, moved = worlds_of(name), uniforms.clone()
    moved[:, 5] = 0.5 + 0.4 * (uniforms[:, 5] - 0.5)
    others.reset(torch.ones(LANES, dtype=torch.bool), moved)
    rng, fine = np.random.default_rng(5), torch.arange(LANES) != 5
    again = torch.zeros(LANES, dtype=torch.bool)
    again[::7] = True
    for t in range(60):
        actions = controls(rng, worlds)
        changed_ = actions.clone()
        changed_[5] = -actions[5]
        mine, theirs = worlds.step(actions), others.step(changed_)
        for x, y in zip((*mine, worlds.observe()), (*theirs, others.observe()), strict=True):
            assert torch.equal(x[fine], y[fine])
        if t == 40:
            worlds.reset(again, uniforms)
            others.reset(again | ~fine, uniforms)
    assert not torch.equal(worlds.qpos[5], others.qpos[5])


def test_a_full_buffer_is_an_error_and_a_solver_at_its_limit_is_not() -> None:
    import mujoco_warp as mjw

    worlds, _ = started("hopper")
    worlds._overflow[3] = int(mjw.OverflowType.ITERATIONS)
    worlds.check()
    for kind in (mjw.OverflowType.NARROWPHASE, mjw.OverflowType.NEFC, mjw.OverflowType.BROADPHASE):
        worlds._overflow[3] = int(kind)
        with pytest.raises(EnvironmentFailure, match="that all users share is full"):
            worlds.check()
        worlds._overflow.zero_()


def test_a_buffer_that_is_too_small_is_noticed(monkeypatch) -> None:
    import mujoco_warp as mjw

    real = mjw.make_data
    monkeypatch.setattr(mjw, "make_data", lambda m, nworld: real(m, nworld=nworld, naconmax=2))
    worlds, _ = started("hopper")
    for _ in range(60):
        worlds.step(torch.zeros(LANES, 3))
    with pytest.raises(EnvironmentFailure, match="that all users share is full"):
        worlds.check()


def test_a_run_is_the_same_from_run_to_run_and_over_shards() -> None:
    words = ("env=hopper", "env.backend=warp", "env.user_steps=8")
    whole = trained([of(*words)], rounds=2)
    for more in ((), ("hardware.shard_users=16",)):
        for name, x in trained([of(*words, *more)], rounds=2).items():
            assert torch.equal(x, whole[name]), name
