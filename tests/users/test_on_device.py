"""Users in worlds: what they do, bits over shards, replicas and resuming, the leak test, and where tensors are.

The code is the same on a GPU, where `tests/algorithms/test_gpu.py` repeats it; the `meta` device shows here
that no operation mixes tensors of the host and of the device.
"""

import contextlib
import math
from dataclasses import replace
from itertools import count
from unittest import mock

import pytest
import torch
from on_device_runs import of, trained

from privrl_bench.algorithms.policy_gradient import dppg
from privrl_bench.algorithms.policy_gradient.critics import (
    batched_ridge_regressions,
    ridge_regressions,
)
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.training.describe import report_of
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.training.workers import make_collector, shard_users, together
from privrl_bench.types import State, UserBatch
from privrl_bench.users.collectors import on_device
from privrl_bench.users.collectors.shards import blank_of


def collected(config, sizes=None, index=0):
    plan = make_plan([config])
    collector = make_collector(plan)
    actor = plan.algo.actor(plan.algo.init(plan.streams))
    users = config.privacy.users_per_round
    shards = list(collector.shards(actor, index, Cohort([sizes or users], None, range(users))))
    return plan, shards


# --- what users do


def test_users_act_until_their_steps_end_and_begin_again_after_each_episode() -> None:
    _, (users,) = collected(of("env=cartpole", "env.user_steps=90", "env.max_episode_steps=40"), 50)
    assert users.valid[0, :50].all()
    assert not users.valid[0, 50:].any()
    assert users.mask[0, :50].all()
    assert not users.mask[0, 50:].any()
    for name in ("obs", "next_obs", "actions", "rewards"):
        assert not getattr(users, name)[0, 50:].any()
    done, ended = users.done[0, :50], users.terminated[0, :50]
    same = ~done[:, :-1]
    assert torch.equal(users.obs[0, :50, 1:][same], users.next_obs[0, :50, :-1][same])
    assert not torch.equal(users.obs[0, :50, 1:][~same], users.next_obs[0, :50, :-1][~same])
    cut = done & ~ended  # the time limit: 40 steps after the last end
    assert cut.any() or ended.any()
    since = torch.zeros(50, dtype=torch.int64)
    for t in range(90):
        since += 1
        assert torch.equal(done[:, t], ended[:, t] | (since >= 40))
        since[done[:, t]] = 0
    stats = users.stats[0]
    assert stats["train/episodes"] == done.sum()
    assert stats["train/return_mean"] <= 40


def test_an_episode_of_a_user_ends_once() -> None:
    config = of(
        "env=cartpole", "env.user=episode", "env.user_steps=null", "env.max_episode_steps=30"
    )
    _, (users,) = collected(config)
    lengths = users.mask[0].sum(-1)
    assert ((lengths > 5) & (lengths <= 30)).all()
    last = users.done[0].gather(1, lengths[:, None] - 1)
    assert last.all()
    assert users.done[0].sum() == 70
    assert not users.obs[0][~users.mask[0]].any()


def test_actions_are_draws_of_the_policy_and_learning_sees_scaled_signals() -> None:
    plan, (users,) = collected(of("env=pendulum", "privacy.users_per_round=512"))
    spec, env = plan.spec, plan.config.env
    deviation = math.exp(plan.config.algo.log_std_init)
    assert users.actions.std() == pytest.approx(deviation, rel=0.05)
    raw = users.obs * torch.tensor(env.obs_std) + torch.tensor(env.obs_mean)
    assert (raw[..., 0] ** 2 + raw[..., 1] ** 2 - 1).abs().max() < 1e-4
    assert spec.max_episode_steps == 200
    assert (users.rewards <= 0).all()
    assert users.rewards.min() >= -16.3 * env.reward_scale


def test_another_round_has_other_users() -> None:
    first, second = (collected(of("env=cartpole"), index=k)[1][0] for k in (0, 1))
    assert not torch.equal(first.obs[..., 0, :], second.obs[..., 0, :])
    assert len(first.obs[0, :, 0].unique(dim=0)) == 70


def test_a_user_whose_numbers_are_not_finite_takes_no_part() -> None:
    plan = make_plan([of("env=cartpole")])
    collector = make_collector(plan)
    broken = collector.substitute("null")
    broken.present, broken.place = True, 7
    actor = plan.algo.actor(plan.algo.init(plan.streams))
    (users,) = collector.shards(actor, 0, Cohort([70], None, range(70)))
    assert users.valid[0].tolist() == [i != 7 for i in range(70)]
    assert torch.isfinite(users.obs).all()
    assert users.stats[0]["train/invalid_users"] == 1.0


# --- bits


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", [("env=cartpole",), ("env=pendulum", "algo.critic=shared")])
def test_a_run_is_the_same_however_a_round_is_cut_into_shards(words) -> None:
    whole = trained([of(*words)])
    for size in ("hardware.shard_users=16", "hardware.shard_users=40"):
        for name, x in trained([of(*words, size)]).items():
            assert torch.equal(x, whole[name]), name


def test_users_of_shards_have_their_rows_in_the_large_groups_of_a_gpu(monkeypatch) -> None:
    whole, words = trained([of("env=pendulum")]), ("env=pendulum", "hardware.shard_users=16")
    monkeypatch.setitem(on_device._GROUP, "cpu", 256)
    for config in (of("env=pendulum"), of(*words)):
        for name, x in trained([config]).items():
            assert torch.equal(x, whole[name]), name


def test_seeds_that_are_trained_together_are_the_same_as_alone() -> None:
    seeds = [of("env=pendulum", f"seed={s}") for s in (3, 4)]
    both = trained(seeds)
    for r, config in enumerate(seeds):
        for name, x in trained([config]).items():
            assert torch.equal(x[0], both[name][r]), name


def test_a_resumed_run_is_the_same() -> None:
    config = of("env=acrobot", "privacy.z=0")
    whole = trained([config], rounds=4)
    first = Trainer(make_plan([config]))
    first.step()
    first.step()
    saved = first.checkpoint(first.snapshot(), 0)
    second = Trainer(make_plan([config]))
    assert second.restore([saved])
    second.step()
    second.step()
    for name, x in second.state.tensors.items():
        assert torch.equal(x, whole[name]), name


def test_ridge_regressions_in_one_call_equal_those_of_single_users() -> None:
    generator = torch.Generator().manual_seed(0)
    phi, target = torch.randn(20, 30, 9, generator=generator), torch.randn(20, 30)
    phi[3] = 0.0  # no steps
    phi[5, :, 1] = phi[5, :, 0] * (1 + 1e-7)  # singular in single precision
    steps = torch.full((20,), 30.0)
    for ridge in (0.01, 1e-12):
        alone = ridge_regressions(phi, target, steps, ridge)
        at_once = batched_ridge_regressions(phi, target, steps, ridge)
        fine = torch.ones(20, dtype=torch.bool) if ridge > 1e-6 else torch.arange(20) % 5 != 0
        fine[3] = ridge > 1e-6
        assert torch.allclose(alone[fine], at_once[fine], rtol=1e-3, atol=1e-4)
        assert torch.isfinite(at_once).all()


# --- privacy


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_no_user_leaves_a_trace_beside_the_release(env) -> None:
    report = find_leaks(shrink(of(f"env={env}"))[0], late=False)
    assert report.ok
    assert not report.no_test_power
    assert not set(report.found) - set(report.declared)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("env=hopper",), "env.backend: torch simulates CartPole-v1, "),
        (("env=cartpole", "algo=ppo"), "env.backend: is torch, but algo=ppo trains users whom the"),
        (("env=cartpole", "env.user=segment"), "start from a reset, unlike those of env.user=segm"),
        (("env=pendulum", "env.obs_scaling=running"), "it keeps no running statistics"),
        (("env=cartpole", "+env.kwargs.sutton_barto_reward=true"), "or other env.kwargs; for cart"),
        (
            ("env=ant", "env.backend=warp", "env.kwargs.include_cfrc_ext_in_observation=true"),
            "or other env.kwargs; for ant use",
        ),
        (
            ("env=hopper", "env.backend=warp", "+env.kwargs.frame_skip=2"),
            "or other env.kwargs; for hop",
        ),
        (
            ("env=cartpole_swingup", "env.backend=warp", "+env.kwargs.task_kwargs={random: 1}"),
            "or other env.kwargs; for cartpole_swingup use auto",
        ),
        (("env=cartpole", "env.backend=cuda"), "env.backend: must be one of auto, loop, torch, w"),
    ],
)
def test_what_is_not_simulated_on_a_device_is_refused(words, message) -> None:
    with pytest.raises(ConfigError) as error:
        make_plan([of(*words)])
    assert message in str(error.value)


def test_mujoco_warp_that_is_not_installed_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'privrl-bench\[gpu\]'"):
        of("env=hopper", "env.backend=warp")


def test_the_guarantee_of_worlds_with_shared_buffers_is_heuristic() -> None:
    pytest.importorskip("mujoco_warp")
    for env, backend, status in (("hopper", "warp", "heuristic"), ("cartpole", "torch", "formal")):
        plan = make_plan([of(f"env={env}", f"env.backend={backend}")])
        assert plan.gate.guarantee(0).status == status


# --- where tensors are


def on_meta(config):
    """The config's plan with its tensors on the meta device, which holds no numbers."""
    plan = make_plan([config])
    state = plan.algo.init(plan.streams)
    there = [replace(s, device="meta") for s in plan.streams]
    plan = replace(plan, streams=there)
    return plan, State(
        0, {k: torch.zeros(x.shape, dtype=x.dtype) for k, x in state.tensors.items()}
    ).to("meta")


@contextlib.contextmanager
def no_numbers():
    """What asks for numbers gets some."""
    answers = (bool(i % 2) for i in count(1))
    there = {
        "__bool__": lambda x: next(answers),
        "tolist": lambda x: [0.0] * x.numel(),
        "__float__": lambda x: 0.0,
        "cpu": lambda x: torch.zeros(x.shape, dtype=x.dtype),
    }
    with contextlib.ExitStack() as stack:
        for name, value in there.items():
            stack.enter_context(mock.patch.object(torch.Tensor, name, value))
        stack.enter_context(mock.patch.object(on_device, "_stats", return_value=[{}]))
        stack.enter_context(mock.patch.object(dppg, "_diagnostics", return_value=[]))
        stack.enter_context(mock.patch.dict(on_device._GROUP, meta=4096))
        yield


def sends(plan, state, users):
    """The rows of users, added by the gate; where they were, and the sum."""
    with mock.patch.object(plan.algo._train, "_device", "meta"):
        rows, valid, _ = plan.algo.user_update(state, users, plan.streams).take()
    total = plan.gate.empty_sum()
    total.add(Contribution(dict(rows), valid))
    return {x.device.type for x in rows.values()}, total


@pytest.mark.fast_every(2)
@pytest.mark.parametrize(
    "env", ["cartpole", "acrobot", "pendulum", "mountain_car", "dosing0", "dosing1", "riverswim"]
)
def test_no_operation_of_a_round_on_a_device_mixes_it_with_the_host(env) -> None:
    plan, state = on_meta(of(f"env={env}"))
    arguments = {**plan.users._arguments(plan, 70), "device": "meta"}
    with no_numbers():
        users = on_device.WorldsCollector(**arguments).collect(
            state.tensors["actor"], 0, Cohort([70], None, range(70))
        )
        assert {getattr(users, n).device.type for n in ("obs", "actions", "valid")} == {"meta"}
        where, total = sends(plan, state, users)
    assert where == {"meta"}
    assert {x.device.type for x in total.sums.values()} == {"cpu"}


@pytest.mark.parametrize(
    "words",
    [
        ("env=hopper",),
        ("env=hopper", "algo.metric=euclidean", "algo.user_update=adam", "algo.clipped_share=1"),
        ("env=ant",),
    ],
)
def test_no_operation_of_training_on_a_device_mixes_it_with_the_host(words) -> None:
    plan, state = on_meta(of(*words, "env.backend=auto"))
    users = UserBatch(
        **blank_of(plan.spec, (1, 5, plan.steps), "meta"),
        valid=torch.ones(1, 5, dtype=torch.bool, device="meta"),
    )
    with no_numbers():
        where, _ = sends(plan, state, users)
    assert where == {"meta"}


def test_shards_follow_the_free_memory_of_a_gpu(monkeypatch) -> None:
    config = of(
        "env=cartpole", "privacy.users_per_round=1_000_000", "env.user_steps=64", "rounds=2"
    )
    monkeypatch.setattr("privrl_bench.kernels.machine.check_hardware", lambda run: None)
    plan = make_plan([replace(config, hardware=replace(config.hardware, device="cuda"))])
    sizes = []
    for free in (2**33, 2**36):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda free=free: (free, free))
        sizes.append(shard_users(plan))
        assert together(plan) == 4096  # bits do not follow it
        assert sizes[-1] % 4096 == 0
    assert 50_000 < sizes[0] < sizes[1] <= 1_003_520
    assert math.isclose(sizes[1] / sizes[0], 8, rel_tol=0.2) or sizes[1] >= 1_000_000


def test_the_plan_says_where_a_round_is_computed() -> None:
    lines = report_of(make_plan([of("env=cartpole")])).lines()
    (line,) = (x for x in lines if x.split()[:1] == ["device"])
    assert "cpu: users' environments (env.backend=torch)" in line
    plain = report_of(make_plan([of("env=cartpole", "env.backend=auto")])).lines()
    assert not [x for x in plain if "env.backend" in x]
