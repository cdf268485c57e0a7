"""Episodes in compiled code against the same episodes, stepped with tensors."""

import numpy as np
import pytest
import torch
from helpers import assert_same_users, changed, shipped, sized, tensors

from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.errors import PrivacyError
from privrl_bench.evaluation import returns as evaluate
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels import episodes as kernel
from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.models.policy import make_policy
from privrl_bench.models.q_network import QPolicy
from privrl_bench.models.trivial_policies import RandomPolicy
from privrl_bench.packs.offline.episode_recorder import RecordingSlots
from privrl_bench.privacy.devices import DeviceNoise, ranges_of
from privrl_bench.users.collectors import compiled_episodes as episodes
from privrl_bench.users.collectors import live as rollout
from privrl_bench.users.collectors.live import SimulatedCollector

STEPS = 150
ENV = changed(
    *(shipped("cartpole"),), user="episode", obs_scaling="none", reward_scaling="none",
    max_episode_steps=STEPS,
)  # fmt: skip
SPEC = env_spec(ENV)
POLICIES = {
    "half": DropoutPolicy(SPEC, (30, 20), 0.5),
    "third": DropoutPolicy(SPEC, (30,), 0.3),
    "none": DropoutPolicy(SPEC, (30,), 0.0),
    "linear": DropoutPolicy(SPEC, (), 0.5),
    "q": QPolicy(SPEC, (30, 20)),
}
PLAIN = FrozenScaling(None, None, 0.0)


def actors(policy, seeds):
    """Far from ties; Q explores often."""
    params = torch.stack([3.0 * policy.init(Streams(s).torch("init", 0)) for s in seeds])
    if isinstance(policy, QPolicy):
        params[:, -1] = 0.7
    return params


def rollout_of(policy, seeds, users, device=None, env=ENV):
    streams = [Streams(s) for s in seeds]
    return SimulatedCollector(env, SPEC, policy, streams, users, STEPS, 0.99, device=device)


def stepped(monkeypatch):
    """No player any more."""
    for module in (rollout, evaluate):
        monkeypatch.setattr(module, "player", lambda slots, policy: None)


def assert_close_users(fast, slow):
    """Actions, ends and masks equal; numbers to the rounding of sines."""
    for name, x in tensors(fast).items():
        y = tensors(slow)[name]
        assert x.shape == y.shape, name
        if x.dtype == torch.float32:
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
        else:
            assert torch.equal(x, y), name
        assert x.is_contiguous() == y.is_contiguous()
    for mine, other in zip(fast.stats, slow.stats, strict=True):
        assert mine == pytest.approx(other, nan_ok=True)


@pytest.mark.parametrize("name", POLICIES)
def test_users_equal_those_that_are_stepped(name, monkeypatch) -> None:
    policy, seeds = POLICIES[name], [1, 5, 9, 11]
    actor, found = actors(policy, seeds), []
    for slow in (False, True):
        if slow:
            stepped(monkeypatch)
        played = rollout_of(policy, seeds, 3)
        found.append([played.collect(actor, k, sized(3, 2, 0, 3)) for k in range(3)])
    for fast, slow in zip(*found, strict=True):
        assert_close_users(fast, slow)
    lengths = torch.stack([users.mask.sum(-1) for users in found[0]])
    assert lengths[:, 2].max() == 0
    assert lengths.max() > 16
    assert len(lengths.unique()) > 5


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_evaluation_equals_stepped_evaluation(name, greedy, monkeypatch) -> None:
    """Over several blocks of noise; the replica that is over plays none."""
    monkeypatch.setattr(evaluate, "_BLOCK", 9)
    policy, seeds = POLICIES[name], list(range(8))
    actor, found = actors(policy, seeds), []
    for slow in (False, True):
        if slow:
            stepped(monkeypatch)
        evaluator = ReturnEvaluator(ENV, SPEC, policy, [Streams(s) for s in seeds], 4, greedy)
        found.append([evaluator.evaluate(actor, k, PLAIN, [3]) for k in range(2)])
    lengths = []
    for fast, slow in zip(sum(found[0], []), sum(found[1], []), strict=True):  # noqa: RUF017
        assert np.array_equal(fast.lengths, slow.lengths)
        assert np.array_equal(fast.returns, slow.returns)
        assert np.array_equal(fast.returns, fast.lengths)
        lengths.append(fast.lengths)
    assert not lengths[3].any()
    assert max(x.max() for x in lengths) > 9


def devices(z, users, seed=0, rewards=False, there=True):
    """Devices whose noise of this round is drawn; the last replica tells nothing unless `there`."""
    made = DeviceNoise(ranges_of(ENV, 4, rewards), z, users, STEPS, "episode", STEPS)
    g = torch.Generator().manual_seed(seed)
    drawn = [[torch.randn(n, generator=g) for n in made.sizes] for _ in z]
    made.begin([*drawn[:-1], drawn[-1] if there else None])
    return made


@pytest.mark.parametrize("rewards", [False, True])
@pytest.mark.parametrize("name", ["half", "q"])
def test_what_devices_show_equals_local_noise_to_the_last_bit(name, rewards, monkeypatch) -> None:
    policy, seeds, z = POLICIES[name], [1, 5, 9, 11], (0.3, 2.0, 0.0, 0.5)
    actor, found = actors(policy, seeds), []
    for slow in (False, True):
        if slow:
            stepped(monkeypatch)
        device = devices(z, 3, rewards=rewards, there=False)
        found.append(rollout_of(policy, seeds, 3, device).collect(actor, 0, sized(*[3] * 4)))
    fast, slow = found
    assert_close_users(fast, slow)
    noisy = [0, 1, 3]  # on the grid, where the rounding of sines is gone
    for x in ("obs", "next_obs", "rewards"):
        assert torch.equal(getattr(fast, x)[noisy], getattr(slow, x)[noisy]), x
    inside = fast.next_obs[3][fast.mask[3]].mean(0)  # of who tells nothing: noise around the middle
    assert inside.abs().max() < 0.5
    assert fast.rewards[0][fast.mask[0]].unique().numel() > 1 or not rewards
    # Each observation was noised once, and the policy acted on it.
    goes_on = fast.mask[:, :, 1:]
    assert torch.equal(fast.obs[:, :, 1:][goes_on], fast.next_obs[:, :, :-1][goes_on])
    for r, seed in enumerate(seeds):
        noise = policy.draw(Streams(seed).torch("policy", 0), STEPS, 64)[:, :3]
        sample = policy.sampler(actor[r : r + 1])
        again = [sample(fast.obs[r : r + 1, :, t], noise[t]) for t in range(STEPS)]
        batch = fast.mask[r]
        assert torch.equal(torch.stack(again, -1)[0][batch], fast.actions[r][batch])


def test_numbers_beyond_single_precision_leave_the_user_out(monkeypatch) -> None:
    found = []
    for slow in (False, True):
        if slow:
            stepped(monkeypatch)
        made = rollout_of(POLICIES["half"], [1, 5], 4, devices((1.0, 1e42), 4))
        found.append(made.collect(actors(POLICIES["half"], [1, 5]), 0, sized(4, 4)))
    assert_close_users(*found)
    assert found[0].valid[0].all()
    assert not found[0].valid[1].any()


@pytest.mark.parametrize("name", ["half", "q"])
def test_nobodys_episode_depends_on_anothers(name) -> None:
    """Bit for bit: alone or with other replicas, other users, other noise of theirs."""
    policy, seeds = POLICIES[name], [1, 5]
    actor = actors(policy, seeds)
    together = rollout_of(policy, seeds, 2, devices((0.5, 0.5), 2)).collect(actor, 1, sized(2, 2))
    alone = rollout_of(policy, [1], 2, devices((0.5,), 2)).collect(actor[:1], 1, sized(2))
    for name_, x in tensors(alone).items():
        assert torch.equal(x[0], tensors(together)[name_][0]), name_
    device = devices((0.5, 0.5), 2)
    device._noise[0][:, :, 1] += 5.0
    device._noise[1][:, :, 1] += 5.0
    other = rollout_of(policy, seeds, 2, device).collect(actor, 1, sized(2, 2))
    assert not torch.equal(other.obs[:, 1], together.obs[:, 1])
    for name_, x in tensors(other).items():
        assert torch.equal(x[:, 0], tensors(together)[name_][:, 0]), name_


def test_a_round_is_the_same_after_others() -> None:
    policy = POLICIES["half"]
    actor, first, second = actors(policy, [1]), *(rollout_of(policy, [1], 2) for _ in range(2))
    first.collect(actor, 0, sized(2))
    assert_same_users(first.collect(actor, 1, sized(1)), second.collect(actor, 1, sized(1)))


def test_nothing_is_shown_before_noise_was_drawn() -> None:
    made = DeviceNoise(ranges_of(ENV, 4, rewards=False), (1.0,), 2, STEPS, "episode", STEPS)
    with pytest.raises(PrivacyError, match="no noise was drawn"):
        made.arrays()


def test_who_has_a_player() -> None:
    policy, slots = POLICIES["half"], make_slots(ENV, 2)
    assert episodes.player(slots, policy) is not None
    assert episodes.player(slots, POLICIES["q"]) is not None
    assert episodes.player(slots, make_policy(SPEC, [8])) is not None
    assert episodes.player(slots, RandomPolicy(SPEC)) is None
    assert episodes.player(RecordingSlots(slots, SPEC), policy) is None
    assert episodes.player(make_slots(changed(ENV, backend="loop"), 2), policy) is None
    assert episodes.player(make_slots(shipped("acrobot"), 2), policy) is None


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, 1),
        ({"obs_scaling": "public"}, 1),
        ({"user": "fresh"}, 1),
        ({"reward_scaling": "running"}, 0),
        ({"user": "segment"}, 0),
    ],
    ids=str,
)
def test_running_statistics_and_carried_slots_are_stepped(changes, asked, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(rollout, "player", lambda *a: calls.append(a))
    made = rollout_of(POLICIES["half"], [1], 2, env=changed(ENV, **changes))
    made.collect(actors(POLICIES["half"], [1]), 0, sized(2))
    assert len(calls) == asked


def test_fresh_users_of_devices_are_stepped(monkeypatch) -> None:
    """Their devices show the first observation of every episode."""
    monkeypatch.setattr(rollout, "player", lambda *a: pytest.fail("asked for"))
    fresh = changed(ENV, user="fresh")
    made = DeviceNoise(ranges_of(fresh, 4, rewards=False), (1.0,), 2, STEPS, "fresh", STEPS)
    made.begin([[torch.zeros(n) for n in made.sizes]])
    rollout_of(POLICIES["half"], [1], 2, made, fresh).collect(
        actors(POLICIES["half"], [1]), 0, sized(2)
    )


@pytest.mark.parametrize("name", ["mlp", "half", "q"])
@pytest.mark.parametrize("user", ["fresh", "episode"])
def test_scaled_users_who_start_again_equal_those_that_are_stepped(name, user, monkeypatch) -> None:
    """Public scaling whose clips bind; a user who starts again has episodes of their own random numbers."""
    policy = POLICIES.get(name) or make_policy(SPEC, [30, 20])
    scaling = {
        **{"obs_scaling": "public", "reward_scaling": "public", "user": user},
        **{"obs_mean": [0.1, 0.0, -0.05, 0.2], "obs_std": [0.3, 0.5, 0.02, 0.5], "obs_clip": 2.0},
        **{"reward_scale": 0.3, "reward_clip": 0.25, "max_episode_steps": 20},
    }
    env, seeds, found = changed(ENV, **scaling), [1, 5, 9, 11], []
    actor = actors(policy, seeds)
    for slow in (False, True):
        if slow:
            stepped(monkeypatch)
        device = devices((1e-3,) * 4, 5) if user == "episode" else None
        played = rollout_of(policy, seeds, 5, device, env=env)
        found.append([played.collect(actor, k, sized(5, 2, 0, 3)) for k in range(2)])
    for fast, slow in zip(*found, strict=True):
        assert_close_users(fast, slow)
        full = user == "fresh"
        assert bool(fast.mask[0].all()) == full
        assert fast.obs.abs().max() == 2.0
        assert fast.rewards.max() == 0.25
        ends = fast.done[0].sum(-1)
        assert (ends >= 3).all() if full else (ends == 1).all()
    assert any((users.done & ~users.terminated).any() for users in found[0])


@pytest.mark.parametrize("z", [[0.5, 0.5], [float("nan"), 1.0], [0.0, float("nan")], [-1.0, 2.0]])
def test_the_largest_is_torchs(z) -> None:
    noise = torch.tensor([0.2, 0.1])
    found = kernel._largest(np.array(z, np.float32), noise.numpy(), 2, 2)
    assert found == int((torch.tensor(z) + noise).argmax())
