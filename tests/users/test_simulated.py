"""What one user is, what their neighbours may change (nothing), and coming back after a stop."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers import assert_same_users, changed, own, rollout_of, shipped, sized, tensors

from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.models.dropout import DropoutPolicy
from privrl_bench.models.policy import make_policy
from privrl_bench.models.q_network import QPolicy
from privrl_bench.privacy.devices import DeviceNoise, ranges_of
from privrl_bench.types import UserBatch
from privrl_bench.users.collectors.live import SimulatedCollector

LIMIT = 5  # of my_pkg's Clock


def rounds_of(config, seeds, users, steps, count, **more) -> list[UserBatch]:
    rollout, actor = rollout_of(config, seeds, users, steps, **more)
    found = [rollout.collect(actor, k, sized(*[users] * len(seeds))) for k in range(count)]
    rollout.close()
    return found


def read_clock(users: UserBatch, slot, expected) -> tuple[int, int] | None:
    """Follow one user's steps; `expected` is the (step, length) they must start from, None: reset.

    Returns where the next user of the slot must start, None: at a reset.
    """
    obs, after = users.obs[slot], users.next_obs[slot]
    for t in range(int(users.mask[slot].sum())):
        step, length = (int(x) for x in obs[t])
        assert 2 <= length <= 7
        assert (step, length) == expected if expected else step == 0
        assert after[t].tolist() == [step + 1, length]  # also where the episode is over
        assert float(users.rewards[slot][t]) == step + 1
        over = step + 1 >= length
        assert bool(users.terminated[slot][t]) == over
        assert bool(users.done[slot][t]) == (over or step + 1 == LIMIT)
        expected = None if users.done[slot][t] else (step + 1, length)
    return expected


SLOTS = [(r, u) for r in range(2) for u in range(3)]


def test_a_segment_goes_on_where_the_last_one_stopped() -> None:
    history = rounds_of(own("Clock", user="segment"), [3, 4], 3, 7, 6)
    carried = 0
    for slot in SLOTS:
        expected = None
        for users in history:
            assert users.mask[slot].all()
            expected = read_clock(users, slot, expected)
            carried += expected is not None
    assert carried > 5
    assert len({int(u.obs[s][0, 1]) for u in history for s in SLOTS}) > 3  # episodes differ


def test_a_fresh_user_starts_from_a_reset_and_restarts_inside() -> None:
    history = rounds_of(own("Clock", user="fresh"), [3, 4], 3, 7, 6)
    cut_short = 0
    for users in history:
        assert users.mask.all()
        for slot in SLOTS:
            cut_short += read_clock(users, slot, None) is not None
        starts = users.obs[:, :, 0, 1].flatten().tolist()
        assert len(set(starts)) > 1
    assert cut_short > 5
    assert not torch.equal(history[0].obs[:, :, 0], history[1].obs[:, :, 0])


def test_every_round_and_user_draws_their_own_actions() -> None:
    rollout, actor = rollout_of(own("Clock", user="fresh"), [3], 3, 40)
    drawn = [
        rollout.collect(0 * actor, k, sized(3)).actions[0, u] for k in range(3) for u in range(3)
    ]
    assert len({tuple(x.tolist()) for x in drawn}) == 9
    again = rollout.collect(0 * actor, 1, sized(3)).actions[0]
    assert torch.equal(again, torch.stack(drawn[3:6]))


def test_an_episode_user_is_one_masked_episode() -> None:
    for users in rounds_of(own("Clock", user="episode"), [3, 4], 3, LIMIT, 6):
        for slot in SLOTS:
            read_clock(users, slot, None)
            steps = int(users.mask[slot].sum())
            length = int(users.obs[slot][0, 1])
            assert steps == min(length, LIMIT)
            assert users.mask[slot][:steps].all()
            assert users.done[slot].nonzero().flatten().tolist() == [steps - 1]
            assert not users.terminated[slot][steps:].any()
            assert not users.rewards[slot][steps:].any()
        assert users.valid.all()


def test_private_metrics_are_unscaled_returns_of_finished_episodes() -> None:
    config = own("Clock", user="fresh", reward_scaling="public", reward_scale=0.1)
    (users,) = rounds_of(config, [3], 4, 9, 1)
    returns = []
    for u in range(4):
        total = 0.0
        for reward, done in zip(users.rewards[0, u], users.done[0, u], strict=True):
            total += 10 * float(reward)
            if done:
                returns.append(total)
                total = 0.0
    assert users.stats[0]["train/episodes"] == len(returns)
    assert users.stats[0]["train/return_mean"] == pytest.approx(np.mean(returns))


# -- replicas and cohorts -------------------------------------------------------------------


@pytest.mark.parametrize("user", ["segment", "fresh", "episode"])
@pytest.mark.parametrize(
    "config",
    [
        shipped("cartpole"),
        own("Point"),
        changed(shipped("cartpole"), obs_scaling="running", reward_scaling="running"),
    ],
    ids=["native", "continuous", "running"],
)
def test_a_replica_does_not_depend_on_the_others(config, user) -> None:
    config = changed(config, user=user, max_episode_steps=30)
    together = rounds_of(config, [5, 9], 3, 40 if user != "episode" else 30, 3)
    for r, seed in enumerate([5, 9]):
        alone = rounds_of(config, [seed], 3, together[0].mask.shape[2], 3)
        for both, one in zip(together, alone, strict=True):
            for name, x in tensors(both).items():
                assert torch.equal(x[r : r + 1], tensors(one)[name]), name
            assert both.stats[r] == pytest.approx(one.stats[0], nan_ok=True)


def test_replicas_with_other_seeds_live_other_lives() -> None:
    first, second = rounds_of(shipped("cartpole"), [5, 9], 2, 20, 1)[0].obs
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("user", ["fresh", "episode"])
def test_a_small_cohort_leaves_the_rest_absent_and_itself_unchanged(user) -> None:
    config = own("Clock", user=user)
    rollout, actor = rollout_of(config, [1, 2], 5, LIMIT)
    full = [rollout.collect(actor, k, sized(5, 5)) for k in range(3)]
    other, _ = rollout_of(config, [1, 2], 5, LIMIT)
    for k, cohort in enumerate([[5, 2], [0, 4], [3, 3]]):
        users = other.collect(actor, k, sized(*cohort))
        for r, size in enumerate(cohort):
            assert users.valid[r].tolist() == [True] * size + [False] * (5 - size)
            assert not users.mask[r, size:].any()
            assert not users.done[r, size:].any()
            for name, x in tensors(users).items():
                assert torch.equal(x[r, :size], tensors(full[k])[name][r, :size]), name


# -- broken users ---------------------------------------------------------------------------


def unlucky(users: UserBatch, spoiled: str) -> torch.Tensor:
    """[R, U]: who met Clock's fault, read from the observations before it."""
    if spoiled == "reset":  # the rollout puts zeros there; a real length is never 0
        return ((users.obs[..., 1] == 0) & users.mask).any(-1)
    before = (users.obs == torch.tensor([1.0, 6.0])).all(-1)
    return (before & users.mask).any(-1)


@pytest.mark.parametrize("spoiled", ["obs", "huge", "reward", "reset"])
@pytest.mark.parametrize("user", ["segment", "fresh", "episode"])
def test_a_user_with_unusable_numbers_is_invalid_and_the_others_untouched(spoiled, user) -> None:
    steps = LIMIT if user == "episode" else 6
    config = own("Clock", user=user, kwargs={"spoiled": spoiled})
    sound = rounds_of(own("Clock", user=user), [3, 4], 12, steps, 4)
    broken = rounds_of(config, [3, 4], 12, steps, 4)
    lost = 0
    so_far = torch.zeros(2, 12, dtype=torch.bool)
    for a, b in zip(broken, sound, strict=True):
        hit = unlucky(a, spoiled)
        lost += int(hit.sum())
        assert torch.equal(a.valid, ~hit)
        so_far = so_far | hit if user == "segment" else hit
        for name, x in tensors(a).items():
            assert torch.isfinite(x).all(), name
            assert torch.equal(x[~so_far], tensors(b)[name][~so_far]), name
        counted = sum(s["train/invalid_users"] for s in a.stats)
        assert counted == int(hit.sum())
    assert 0 < lost < 4 * 24 / 2


@pytest.mark.parametrize("spoiled", ["obs", "reward", "reset"])
def test_unusable_numbers_do_not_enter_running_statistics(spoiled) -> None:
    config = own("Clock", user="segment", kwargs={"spoiled": spoiled})
    config = changed(config, obs_scaling="running", reward_scaling="running")
    rollout, actor = rollout_of(config, [3], 8, 6)
    batches = [rollout.collect(actor, k, sized(8)) for k in range(6)]
    sound = torch.stack([b.valid for b in batches]).all(0)
    assert not sound.all()
    state = rollout.get_state()
    if spoiled != "reset":
        taken = (state["scaler.return_count"] - 1e-4).round()
        assert torch.equal(taken == 36, sound)
        seen = (state["scaler.obs_count"] - 1e-4).round()
        assert torch.equal(seen, taken + state["episode"])
    for name, x in state.items():
        if name.startswith("scaler"):
            assert torch.isfinite(x).all(), name
    assert all(torch.isfinite(x).all() for b in batches for x in tensors(b).values())


def test_an_environment_that_raises_stops_the_round() -> None:
    config = own("Clock", kwargs={"spoiled": "raise"})
    with pytest.raises(EnvironmentFailure, match="pump is stuck"):
        rounds_of(config, [3], 12, 12, 4)


# -- coming back ----------------------------------------------------------------------------


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("scaling", ["none", "running"])
@pytest.mark.parametrize("name", ["cartpole", "hopper", "acrobot", "cartpole_swingup"])
def test_restored_slots_go_on_bit_for_bit(name, scaling) -> None:
    config = changed(shipped(name), user="segment", obs_scaling=scaling, reward_scaling=scaling)
    rollout, actor = rollout_of(config, [1, 2], 2, 39)
    for k in range(2):
        rollout.collect(actor, k, sized(2, 2))
    saved = {k: v.clone() for k, v in rollout.get_state().items()}
    assert (saved["elapsed"] > 0).all()
    expected = [rollout.collect(actor, k, sized(2, 2)) for k in (2, 3)]
    rollout.close()
    other, _ = rollout_of(config, [1, 2], 2, 39)
    assert other.set_state(saved)
    again = other.get_state()
    assert again.keys() == saved.keys()
    for key, x in saved.items():
        torch.testing.assert_close(again[key], x, rtol=0, atol=0, equal_nan=True)
    for k, users in zip((2, 3), expected, strict=True):
        now = other.collect(actor, k, sized(2, 2))
        assert_same_users(now, users)
        for mine, theirs in zip(now.stats, users.stats, strict=True):
            assert mine == pytest.approx(theirs, nan_ok=True)
    other.close()


@pytest.mark.parametrize("user", ["fresh", "episode"])
def test_without_carried_over_episodes_the_round_alone_decides(user) -> None:
    config = own("Clock", user=user)
    history = rounds_of(config, [1], 3, LIMIT, 4)
    rollout, actor = rollout_of(config, [1], 3, LIMIT)
    before, _ = rollout_of(config, [1], 3, LIMIT)
    assert rollout.set_state(before.get_state())
    assert_same_users(rollout.collect(actor, 3, sized(3)), history[3])


def test_an_environment_with_a_life_of_its_own_is_noticed() -> None:
    config = own("Clock", user="segment", kwargs={"drift": True})
    rollout, actor = rollout_of(config, [1], 2, 3)
    rollout.collect(actor, 0, sized(2))
    other, _ = rollout_of(config, [1], 2, 3)
    assert not other.set_state(rollout.get_state())


# -- running statistics ---------------------------------------------------------------------


def test_running_observation_statistics_equal_gymnasiums_over_rounds_and_episodes() -> None:
    config = changed(shipped("cartpole"), user="segment", obs_scaling="running")
    history = rounds_of(config, [6], 1, 45, 8)
    env = gym.wrappers.NormalizeObservation(gym.make("CartPole-v1"))
    stream, episode = Streams(6), 0
    obs, _ = env.reset(seed=stream.episode_seed("env", 0, episode))
    for users in history:
        for t in range(45):
            assert users.obs[0, 0, t].numpy() == pytest.approx(np.clip(obs, -10, 10), abs=1e-5)
            obs, _, over, cut, _ = env.step(int(users.actions[0, 0, t]))
            after = users.next_obs[0, 0, t].numpy()
            assert after == pytest.approx(np.clip(obs, -10, 10), abs=1e-5)
            assert bool(users.done[0, 0, t]) == (over or cut)
            if over or cut:
                episode += 1
                obs, _ = env.reset(seed=stream.episode_seed("env", 0, episode))
    assert episode > 5


def test_running_reward_statistics_equal_gymnasiums_in_an_episode() -> None:
    config = changed(shipped("pendulum"), user="segment", reward_scaling="running")
    history = rounds_of(config, [6], 1, 50, 4)
    env = gym.wrappers.NormalizeReward(gym.make("Pendulum-v1"), gamma=0.99)
    env.reset(seed=Streams(6).episode_seed("env", 0, 0))
    for users in history:
        for t in range(50):
            action = 2.0 * users.actions[0, 0, t].clamp(-1, 1).numpy()
            _, reward, *_ = env.step(action)
            assert float(users.rewards[0, 0, t]) == pytest.approx(max(reward, -10), abs=1e-5)


def test_running_reward_statistics_learn_from_nobody_who_is_not_there() -> None:
    config = own("Clock", user="episode", reward_scaling="running")
    rollout, actor = rollout_of(config, [3], 6, LIMIT)
    seen, running = np.zeros(6), []
    for k in range(3):
        users = rollout.collect(actor, k, sized(4))
        seen += users.mask[0].sum(-1).numpy()
        running.append(users.rewards[0, :4, 0])
    state = rollout.get_state()
    assert state["scaler.return_count"][0].numpy() == pytest.approx(seen + 1e-4)
    assert not state["scaler.running_return"][0, 4:].any()


def test_a_fresh_user_does_not_inherit_a_running_return() -> None:
    config = own("Point", user="fresh", reward_scaling="running")  # steps 12 of 30: cut in between
    rollout, actor = rollout_of(config, [3], 1, 12)
    total, values = 0.0, []
    batches = [rollout.collect(actor, k, sized(1)) for k in range(4)]
    for users in batches:
        total = 0.0
        for place in users.next_obs[0, 0].double():
            total = 0.99 * total - float((place**2).sum())
            values.append(total)
    state = rollout.get_state()
    assert float(state["scaler.return_mean"]) == pytest.approx(np.mean(values), rel=1e-4)
    assert float(state["scaler.return_var"]) == pytest.approx(np.var(values), rel=1e-4)


def test_public_scaling_uses_the_constants_and_the_bounds() -> None:
    config = own(
        "Clock",
        user="fresh",
        obs_scaling="public",
        obs_mean=[1.0, 0.0],
        obs_std=[0.5, 2.0],
        obs_clip=3.0,
        reward_scaling="public",
        reward_scale=2.0,
        reward_clip=7.0,
    )
    (scaled,) = rounds_of(config, [3], 4, 9, 1)
    (plain,) = rounds_of(own("Clock", user="fresh"), [3], 4, 9, 1)
    expected = ((plain.obs - torch.tensor([1.0, 0.0])) / torch.tensor([0.5, 2.0])).clamp(-3, 3)
    torch.testing.assert_close(scaled.obs, expected)
    torch.testing.assert_close(scaled.rewards, (2 * plain.rewards).clamp(-7, 7))


# -- evaluation -----------------------------------------------------------------------------


def evaluate(actor_of, episodes, *, greedy, round_index=0, seeds=(1, 2)):
    config = own("MyEnv")
    spec = env_spec(config)
    policy = make_policy(spec, [4])
    streams = [Streams(s) for s in seeds]
    rollout, _ = rollout_of(config, list(seeds), 1, 4)
    evaluator = ReturnEvaluator(config, spec, policy, streams, episodes, greedy)
    return evaluator.evaluate(actor_of(policy), round_index, rollout.scaler.frozen())


def always_right(policy) -> torch.Tensor:
    actor = torch.zeros(2, policy.size)
    actor[:, -1] = 50.0  # the bias of choice 1
    return actor


def test_evaluation_plays_whole_episodes_to_their_limit() -> None:
    for greedy in (True, False):
        for found in evaluate(always_right, 3, greedy=greedy):
            assert found.returns.tolist() == [17.0] * 3
            assert found.lengths.tolist() == [20] * 3


def test_evaluation_of_uniform_play_agrees_with_theory() -> None:
    (found, other) = evaluate(lambda p: torch.zeros(2, p.size), 400, greedy=False)
    assert found.returns.mean() == pytest.approx(17 / 16, abs=0.35)
    assert not np.array_equal(found.returns, other.returns)


def test_an_evaluation_is_a_function_of_seed_and_round() -> None:
    def flat(policy):
        return torch.zeros(2, policy.size)

    first = evaluate(flat, 20, greedy=False)[1].returns
    assert np.array_equal(first, evaluate(flat, 20, greedy=False)[1].returns)
    assert np.array_equal(first, evaluate(flat, 20, greedy=False, seeds=(7, 2))[1].returns)
    assert not np.array_equal(first, evaluate(flat, 20, greedy=False, round_index=1)[1].returns)


CARTPOLE = changed(
    *(shipped("cartpole"),), user="episode", obs_scaling="none", reward_scaling="none",
    max_episode_steps=60,
)  # fmt: skip
SPEC = env_spec(CARTPOLE)
POLICIES = {"dropout": DropoutPolicy(SPEC, (30, 20), 0.5), "q": QPolicy(SPEC, (30, 20))}


def of_cartpole(name, seeds, noise):
    """A round of two users of each seed, whose devices add `noise` [T + 1, R, U, D]-like draws."""
    policy = POLICIES[name]
    actor = torch.stack([3.0 * policy.init(Streams(s).torch("init", 0)) for s in seeds])
    if name == "q":
        actor[:, -1] = 0.7  # explores often
    device = DeviceNoise(
        ranges_of(CARTPOLE, 4, rewards=False), (0.5,) * len(seeds), 2, 60, "episode", 60
    )
    device.begin(noise(device))
    streams = [Streams(s) for s in seeds]
    made = SimulatedCollector(CARTPOLE, SPEC, policy, streams, 2, 60, 0.99, device=device)
    return made, lambda: made.collect(actor, 1, sized(*[2] * len(seeds)))


@pytest.mark.parametrize("name", POLICIES)
def test_nobodys_episode_depends_on_anothers(name) -> None:
    """Bit for bit: alone or with other replicas, other users, other noise of theirs."""

    def drawn(device):
        g = torch.Generator().manual_seed(0)
        return [[torch.randn(n, generator=g) for n in device.sizes] for _ in device._z]

    together = of_cartpole(name, [1, 5], drawn)[1]()
    alone = of_cartpole(name, [1], drawn)[1]()
    for field, x in tensors(alone).items():
        assert torch.equal(x[0], tensors(together)[field][0]), field
    made, collect = of_cartpole(name, [1, 5], drawn)
    for noise in made.device._noise[:2]:  # of the first observations, and of those after a step
        noise[..., 1, :] += 5.0
    other = collect()
    assert not torch.equal(other.obs[:, 1], together.obs[:, 1])
    for field, x in tensors(other).items():
        assert torch.equal(x[:, 0], tensors(together)[field][:, 0]), field
