"""Noise on users' devices: what it adds, what epsilon is, who sees which observation, what is refused."""

import itertools
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import assert_same_users, release
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_compose import choices
from privrl_bench.composition.identity import noise_key
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy import noise as noise_module
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.contribution import Block, Contribution
from privrl_bench.privacy.devices import DeviceNoise, Ranges, most_shown, perturbed, ranges_of
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import SeededNoise
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.folder import RunDir
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run
from privrl_bench.training.trainer import Trainer

SMALL = (
    *("privacy=local", "algo.hidden=[8]", "privacy.users_per_round=3", "env.user_steps=16"),
    *("eval.episodes=1", "eval.every=0", "total_steps=240", "log=none", "log.progress=false"),
)
CLOCK = (
    *("env=gym", "env.id=my_pkg:Clock-v0"),
    *("env.obs_low=[0,0]", "env.obs_high=[8,8]", "env.obs_noise_scale=[1,0.5]"),
)
CARTPOLE = ranges_of(compose(["algo=ppo", "env=cartpole"]).env, 4, rewards=False)
DELTA = 1e-5


def config(*words):
    given = later_wins([*SMALL, *words])
    if "env.user=episode" in given or "algo=reinforce" in given:  # T is the episode's length
        given = [word for word in given if not word.startswith("env.user_steps=")]
    return compose(given)


def session_of(*configs):
    return Trainer(make_plan(list(configs)))


def collected(session, index=0):
    actor = session.parts.algo.actor(session.state)
    session.parts.gate.announce(index)
    return session.collect(actor, index)


# --- the mechanism


def test_numbers_are_clipped_and_then_noised():
    low, high = np.array([-1.0, 0.0]), np.array([1.0, 4.0])
    x = np.array([[5.0, -3.0], [0.5, np.nan], [-np.inf, np.inf]])
    told = perturbed(x, low, high, np.array([0.25, 10.0]))
    assert told.tolist() == [[1.25, 10.0], [0.75, 12.0], [-0.75, 14.0]]


def devices(z=(1.0,), users=40, steps=50, unit="fresh", reward=None, scale=(0.5, 2.0)):
    ranges = Ranges(np.array([-1.0, 0.0]), np.array([1.0, 4.0]), np.array(scale), reward)
    made = DeviceNoise(ranges, z, users, steps, unit, max_episode_steps=500)
    made.begin([SeededNoise(r, 7).normal(made.sizes, 0, 0) for r in range(len(z))])
    return made


@pytest.mark.parametrize("z", [0.3, 2.0])
def test_the_noise_has_the_stated_deviation_for_each_number_and_replica(z):
    made = devices((z, 5 * z), reward=(-2.0, 6.0))
    raw = np.broadcast_to([9.0, 1.0], (2, 40, 2))  # beyond its range, within
    for told in (made.at_reset, made.after_step):
        off = np.stack([told(raw, t) for t in range(50)]) - [1.0, 1.0]  # [T, R, U, D]
        for r, factor in enumerate((1.0, 5.0)):
            assert off[:, r].std((0, 1)) == pytest.approx(
                [0.5 * z * factor, 2 * z * factor], rel=0.06
            )
            assert np.abs(off[:, r].mean((0, 1))).max() < 5 * 2 * z * factor / math.sqrt(2000)
        flat = off[:, 0].reshape(-1, 2)
        assert abs(np.corrcoef(flat.T)[0, 1]) < 0.1
    rewards = np.stack([made.reward(np.full((2, 40), 99.0), t) for t in range(50)])
    assert rewards[:, 0].std() == pytest.approx(8 * z, rel=0.06)
    assert rewards[:, 0].mean() == pytest.approx(6.0, abs=5 * 8 * z / math.sqrt(2000))


def test_every_observation_has_noise_of_its_own():
    made, raw = devices(), np.zeros((1, 40, 2))
    told = [made.at_reset(raw, t) for t in range(51)] + [made.after_step(raw, t) for t in range(50)]
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(told, 2))
    users = list(np.moveaxis(np.stack(told), 2, 0))
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(users, 2))


def test_what_is_shown_is_on_a_public_grid():
    told = devices((0.3,)).after_step(np.full((1, 40, 2), 0.123456789), 0)
    for j, std in enumerate((0.15, 0.6)):
        grid = 2.0 ** math.floor(math.log2(std / 1024))
        assert np.array_equal(told[..., j] / grid, np.round(told[..., j] / grid))


def test_without_noise_clipping_stays():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = devices((0.0,), reward=(0.0, 1.0))
    assert made.after_step(np.full((1, 40, 2), 7.3), 0)[0, 0].tolist() == [1.0, 4.0]
    assert made.reward(np.full((1, 40), 0.3), 0)[0, 0] == 0.3
    assert made.mu(0) == math.inf


def test_a_replica_without_a_ledger_line_shows_nothing():
    made = devices((1.0, 1.0))
    made.begin([None, SeededNoise(1, 7).normal(made.sizes, 0, 0)])
    told = made.after_step(np.full((2, 40, 2), 0.77), 3)
    assert np.array_equal(told[0], np.broadcast_to([0.0, 2.0], (40, 2)))
    assert told[1].std() > 0.1


def test_nothing_is_shown_before_noise_was_drawn():
    made = DeviceNoise(CARTPOLE, (1.0,), 2, 3, "fresh", 500)
    for show in (made.at_reset, made.after_step):
        with pytest.raises(PrivacyError, match="no noise was drawn"):
            show(np.zeros((1, 2, 4)), 0)


# --- the accountant


def test_known_answers_on_cartpole():
    """facts/algorithms.md, section 4.2: the box +-(4.8, 4, 0.418, 4) in units of the paper's noise."""
    by_hand = math.sqrt((9.6 / 0.55) ** 2 + (8 / 0.39) ** 2 + (0.836 / 0.05) ** 2 + (8 / 0.32) ** 2)
    assert by_hand == pytest.approx(40.4, abs=0.05)
    assert CARTPOLE.mu(1.0, 1) == pytest.approx(by_hand)
    for sigma, mu, found in ((0.3, 3012.4, 4.5e6), (5.0, 180.75, 1.7e4)):
        assert CARTPOLE.mu(sigma, 501) == pytest.approx(mu, rel=1e-4)
        words = ("privacy=local", "env=cartpole", "env.user=episode", f"privacy.z={sigma}")
        plan = make_plan([compose(later_wins(["algo=dppg", *words]))]).gate
        assert plan.event(0).adjacency == "any_trajectory_pair"
        assert plan.planned_epsilon(0) == pytest.approx(found, rel=0.02)
        once = ledger_epsilon(
            [ReleaseEvent("gaussian", 1 / mu, "zero_out", sampling="fixed")], DELTA
        )
        assert plan.planned_epsilon(0) == pytest.approx(once, rel=1e-3)  # doubled nowhere


def delta_of(eps, mu):
    """Balle and Wang 2018, theorem 8, in logarithms."""
    first, second = log_ndtr(mu / 2 - eps / mu), eps + log_ndtr(-mu / 2 - eps / mu)
    return math.exp(first) - math.exp(second)


@pytest.mark.parametrize("mu", [0.5, 40.0, 3000.0, 9e4])
def test_epsilon_is_that_of_one_gaussian(mu):
    found = ledger_epsilon(
        [ReleaseEvent("gaussian", 1 / mu, "any_trajectory_pair", sampling="fixed")], DELTA
    )
    assert delta_of(found, mu) <= DELTA * 1.001
    assert delta_of(found * (1 - 1e-3), mu) > DELTA


def test_a_huge_epsilon_is_stated_and_is_a_bound():
    def of(mu):
        return ledger_epsilon(
            [ReleaseEvent("gaussian", 1 / mu, "any_trajectory_pair", sampling="fixed")], DELTA
        )

    assert of(1.001e5) - of(1.001e5 / 1.0011) > 0
    assert of(1.0001e5) == pytest.approx(of(0.9999e5), rel=1e-3)
    for mu in (1e6, 1e12, 1e60):
        assert mu**2 / 2 <= of(mu) <= mu**2 / 2 + 5 * mu
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steep = Ranges(np.zeros(1), np.full(1, 1e300), np.full(1, 1e-8))
        assert steep.mu(1.0, 1) == math.inf
    assert of(math.inf) == math.inf


@settings(max_examples=40)
@given(
    z=st.floats(1e-3, 1e3),
    steps=st.integers(1, 2000),
    factor=st.floats(1.01, 50.0),
    more=st.integers(1, 500),
    user=st.sampled_from(["episode", "fresh", "segment"]),
)
def test_epsilon_falls_with_noise_and_grows_with_steps(z, steps, factor, more, user):
    ranges = replace(CARTPOLE, reward=(0.0, 1.0))

    def of(z, steps, ranges=ranges):
        made = DeviceNoise(ranges, (z,), 1, steps, user, 10**6)
        return ledger_epsilon(
            [ReleaseEvent("gaussian", 1.0 / made.mu(0), "any_trajectory_pair", sampling="fixed")],
            DELTA,
        )

    here = of(z, steps)
    assert 0 < of(z * factor, steps) < here < of(z, steps + more)
    assert of(z, steps, CARTPOLE) < here  # noised rewards cost as well


def test_how_much_a_unit_tells():
    assert most_shown("episode", 500, 500) == (501, 500)
    assert most_shown("fresh", 64, 500) == (128, 64)
    assert most_shown("segment", 128, 500) == (129, 128)
    assert most_shown("segment", 2048, 1000) == (1001, 1000)
    assert CARTPOLE.mu(2.0, 9, rewards=7) == CARTPOLE.mu(2.0, 9)  # public ones cost nothing
    noised = replace(CARTPOLE, reward=(0.0, 3.0))
    assert noised.mu(2.0, 9, 7) ** 2 == pytest.approx(CARTPOLE.mu(2.0, 9) ** 2 + 7 / 4)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("user", "max_episode_steps"), [("fresh", 1), ("fresh", 3), ("episode", 5), ("segment", 5)]
)
def test_no_unit_tells_more_than_is_counted(user, max_episode_steps):
    words = (f"env.user={user}", f"env.max_episode_steps={max_episode_steps}", "env.user_steps=8")
    parts = make_plan([config("algo=dppg", *CLOCK, *words)])
    session, most = Trainer(parts), parts.gate.devices.observations
    seen = []
    for index in range(3):
        users = collected(session, index)
        for u in range(3):
            told = users.mask[0, u]
            both = torch.cat([users.obs[0, u][told], users.next_obs[0, u][told]])
            seen.append(len(torch.unique(both, dim=0)))
    # The longest Clock of limit 1 restarts in every step. A segment of 8 holds several of at most 5 steps.
    assert (max(seen) <= most) or user == "segment"
    assert user == "segment" or max_episode_steps != 1 or max(seen) == most == 16


@pytest.mark.parametrize("max_episode_steps", [1, 3])
def test_running_statistics_see_no_more_than_is_counted(max_episode_steps):
    """Found by an audit: the reset after a fresh user's last step showed one observation too many."""
    words = ("env.user=fresh", f"env.max_episode_steps={max_episode_steps}", "env.user_steps=8")
    parts = make_plan([config("algo=dppg", *CLOCK, *words, "env.obs_scaling=running")])
    session = Trainer(parts)
    collected(session)
    count = session.collector.scaler.get_state()["obs_count"]
    assert 8 < round(float(count.max()), 2) <= parts.gate.devices.observations  # it begins near 0


def test_guarantees_in_words():
    plan = make_plan([config("algo=dppg", "env=cartpole", "algo.critic=shared")]).gate
    found = plan.guarantee(0)
    assert (found.notion, found.adjacency, found.status) == (
        "local",
        "any-trajectory-pair",
        "formal",
    )
    assert found.unit.startswith("the observations of one simulated user: 16 steps from a reset")
    assert found.unit.endswith("given their rewards and when their episodes end")
    assert "reveal the return completely" in found.notes["told exactly"]
    assert math.isinf(plan.paper_epsilon(0))
    noised = config("algo=ppo", "env=cartpole", "privacy.rewards=noised", "env.user=segment")
    found = make_plan([noised]).gate.guarantee(0)
    assert found.unit.startswith(
        "the observations and rewards of one simulated user: one trajectory of at most 500 steps"
    )
    assert found.unit.endswith("in up to 33 rounds, given when it ends")
    assert not found.caveats
    silent = make_plan([config("algo=ppo", "env=cartpole", "privacy.z=0")]).gate.guarantee(0)
    assert (silent.status, silent.epsilon) == ("none", math.inf)


# --- the rollout


def test_shown_observations_are_clip_and_noise_by_hand():
    one = config("algo=dppg", "env=cartpole", "privacy.z=0.3", "env.obs_scaling=none")
    session = session_of(one)
    users = collected(session)
    slots = make_slots(one.env, 3)
    seeds = [session.parts.streams[0].episode_seed("env", u, 0, 0) for u in range(3)]
    raw = slots.reset(np.arange(3), seeds)
    sizes = session.parts.gate.devices.sizes
    drawn = SeededNoise(one.seed, noise_key(one)).normal(sizes, 0, 0)
    starts, steps = (x.numpy().reshape(-1, 3, 4) for x in drawn)
    std = 0.3 * CARTPOLE.scale
    assert np.abs(users.obs[0, :, 0].numpy() - raw - std * starts[0]).max() < 1e-3 * std.max()
    for t in range(8):  # nobody falls that early
        raw = slots.step(np.arange(3), users.actions[0, :, t].numpy()).obs
        hand = np.clip(raw, CARTPOLE.low, CARTPOLE.high) + std * steps[t]
        off = np.abs(users.next_obs[0, :, t].numpy() - hand)
        assert (off < 1e-3 * std).all()


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("user", ["fresh", "episode", "segment"])
@pytest.mark.parametrize(
    "env", [("env=cartpole",), ("env=pendulum", "env.max_episode_steps=7"), CLOCK]
)
def test_an_observation_is_noised_once_and_the_policy_saw_what_the_batch_holds(
    user, env, monkeypatch
):
    words = (f"env.user={user}", "privacy.z=1", "algo.minibatches=1", "total_steps=10_000")
    session = session_of(config("algo=dppg", *env, *words))
    policy, seen = session.parts.algo.policy, []
    real = policy.sampler

    def spied(actor):
        sample = real(actor)

        def watched(obs, noise):
            seen.append(obs.clone())
            return sample(obs, noise)

        return watched

    monkeypatch.setattr(policy, "sampler", spied, raising=False)
    last = None
    for index in range(4):
        seen.clear()
        users = collected(session, index)
        told = users.mask[0]
        assert torch.equal(
            torch.stack(seen, 2)[0][: len(told)][told[:, : len(seen)]], users.obs[0][told]
        )
        goes_on = told[:, 1:] & ~users.done[0, :, :-1]
        assert goes_on.any()
        assert torch.equal(users.obs[0, :, 1:][goes_on], users.next_obs[0, :, :-1][goes_on])
        restarts = told[:, 1:] & users.done[0, :, :-1]
        same = (users.obs[0, :, 1:] == users.next_obs[0, :, :-1]).all(-1)
        assert not same[restarts].any()
        if last is not None and user == "segment":
            carried = ~last.done[0, :, -1]
            assert torch.equal(users.obs[0, carried, 0], last.next_obs[0, carried, -1])
        last = users


def test_no_number_from_an_environment_is_no_reason_to_leave_somebody_out():
    """Whether an observation is finite is private as well; a reward that is none is told."""
    many = ("privacy.users_per_round=20", "total_steps=1000")
    words = ("+env.kwargs.spoiled=obs", *many)
    users = collected(session_of(config("algo=dppg", *CLOCK, *words)))
    assert users.valid.all()
    assert torch.isfinite(users.obs).all()
    words = ("+env.kwargs.spoiled=reward", *many)
    assert not collected(session_of(config("algo=dppg", *CLOCK, *words))).valid.all()
    ranges = ("env.reward_low=0", "env.reward_high=9", "privacy.rewards=noised")
    users = collected(session_of(config("algo=dppg", *CLOCK, *words, *ranges)))
    assert users.valid.all()
    assert users.rewards.std() > 1


def test_idle_steps_hold_no_noise():
    ranges = ("env.reward_low=0", "env.reward_high=9", "privacy.rewards=noised", "env.user=episode")
    users = collected(session_of(config("algo=dppg", *CLOCK, *ranges)))
    assert (~users.mask).any()
    assert not users.rewards[~users.mask].any()
    assert not users.obs[~users.mask].any()


def test_replicas_are_independent_and_equal_lone_runs():
    one = config("algo=dppg", "env=cartpole", "privacy.z=0.3")
    others = [one, replace(one, seed=1), replace(one, privacy=replace(one.privacy, z=2.0))]
    together = collected(session_of(*others))
    for r, alone in enumerate(others):
        mine = collected(session_of(alone))
        for name in ("obs", "next_obs", "actions", "rewards"):
            assert torch.equal(getattr(together, name)[r], getattr(mine, name)[0])
    # Start states are alike but for the seed; the noise of another z is another draw, not a multiple.
    start = [together.obs[r, :, 0] for r in (0, 2)]
    assert abs(float(torch.corrcoef(torch.stack([x.ravel() for x in start]))[0, 1])) < 0.9


def test_evaluation_episodes_are_clean():
    found = [
        session_of(config("algo=dppg", "env=cartpole", f"privacy.z={z}")).evaluate()[0].returns
        for z in (1e-6, 1000)
    ]
    assert np.array_equal(*found)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("user", ["fresh", "segment"])
@pytest.mark.parametrize("algo", ["dppg", "ppo"])
def test_a_resumed_run_has_the_same_noise(user, algo, tmp_path):
    one = config(f"algo={algo}", "env=cartpole", f"env.user={user}", "privacy.z=0.5")
    whole = session_of(one)
    for _ in range(4):
        whole.step()
    half = Trainer(make_plan([one]).opened([tmp_path / "ledger.jsonl"]))
    for _ in range(2):
        half.step()
    saved = half.checkpoint(half.snapshot(), 0)
    half.step()  # a round after the last checkpoint is done again, and counts once
    again = Trainer(make_plan([one]).opened([tmp_path / "ledger.jsonl"]))
    assert again.restore([saved])
    for _ in range(2):
        again.step()
    for name, x in whole.state.tensors.items():
        assert torch.equal(x, again.state.tensors[name]), name
    ledger = again.parts.gate.ledgers[0].summary()
    assert ledger == {"lines": 4, "rounds": 4, "repeated": 0}
    assert again.parts.gate.spent_epsilon(0) == whole.parts.gate.spent_epsilon(0)


def test_secure_noise_is_drawn_anew_and_counted_again(tmp_path):
    one = config("algo=dppg", "env=cartpole", "privacy.noise=secure", "privacy.z=5")
    found = []
    for _ in range(2):
        session = Trainer(make_plan([one]).opened([tmp_path / "ledger.jsonl"]))
        found.append(collected(session).obs)
    assert not torch.equal(*found)
    plan = session.parts.gate
    assert plan.ledgers[0].summary() == {"lines": 2, "rounds": 0, "repeated": 1}
    assert (
        plan.spent_epsilon(0)
        == ledger_epsilon([plan.event(0)] * 2, DELTA)
        > plan.planned_epsilon(0)
    )


# --- the gate


def plan_of(pooled, users=4, rounds=3, path=None, noise=None):
    privacy = PrivacyConfig(
        mechanism="local", adjacency="any_trajectory_pair", z=1.0, clip=0.1, users_per_round=users
    )
    made = DeviceNoise(CARTPOLE, (1.0,), users, 5, "fresh", 500)
    return Gate(
        *([privacy], (Block("actor", 6, 0.1),), Unit("one user", 1), rounds),
        *([noise or SeededNoise(0, 0)], [Ledger(path)]),
        devices=made,
        pooled=pooled,
    )


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_pass_without_clip_and_noise(pooled):
    plan, users = plan_of(pooled), 1 if pooled else 4
    rows = torch.full((1, users, 6), 50.0)
    valid = torch.ones(1, users, dtype=torch.bool)
    beside = {"anything": {"x": torch.ones(1, 2)}}  # comes after the noise as well
    plan.begin_devices(0)
    released = release(plan, Contribution({"actor": rows}, valid, beside), 0)
    assert torch.equal(released.values["actor"], torch.full((1, 6), 50.0))
    assert released.bypass == beside
    valid[0, -1] = False
    plan.begin_devices(1)
    released = release(plan, Contribution({"actor": rows[:, :users]}, valid), 1)
    assert torch.equal(released.values["actor"], torch.full((1, 6), 0.0 if pooled else 37.5))


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_of_another_number_of_users_are_refused(pooled):
    plan, users = plan_of(pooled), 4 if pooled else 1
    plan.begin_devices(0)
    rows, valid = {"actor": torch.zeros(1, users, 6)}, torch.ones(1, users, dtype=torch.bool)
    with pytest.raises(PrivacyError, match=r"a round has rows of \d users"):
        release(plan, Contribution(rows, valid), 0)


def test_the_line_is_on_the_disk_before_the_noise_is_drawn(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    lines = []
    real = noise_module.SeededNoise.normal

    def drawn(self, sizes, index, attempt):
        lines.append(json.loads(path.read_text().splitlines()[-1]))
        return real(self, sizes, index, attempt)

    monkeypatch.setattr(noise_module.SeededNoise, "normal", drawn)
    plan = plan_of(False, path=path)
    plan.begin_devices(0)
    (line,) = lines
    assert (line["round"], line["mechanism"], line["adjacency"]) == (
        0,
        "gaussian",
        "any_trajectory_pair",
    )
    assert line["z"] == pytest.approx(1 / CARTPOLE.mu(1.0, 10))
    assert line["told"] == {"observations": 10, "rewards": 0}


def test_the_gate_refuses_what_has_no_noise_or_no_analysis():
    rows, valid = {"actor": torch.zeros(1, 4, 6)}, torch.ones(1, 4, dtype=torch.bool)
    plan = plan_of(False)
    with pytest.raises(PrivacyError, match="devices had no noise in round 0"):
        release(plan, Contribution(rows, valid), 0)
    with pytest.raises(PrivacyError, match="beyond the 3 planned"):
        plan.begin_devices(3)
    without = PrivacyConfig(mechanism="local", adjacency="any_trajectory_pair")
    with pytest.raises(PrivacyError, match="go together"):
        Gate(
            *([without], (Block("actor", 6, 0.1),), Unit("u", 1), 1),
            *([SeededNoise(0, 0)], [Ledger(None)]),
        )
    wrong = PrivacyConfig(mechanism="local", adjacency="any_trajectory_pair")
    wrong.adjacency = "zero_out"
    with pytest.raises(PrivacyError, match="any_trajectory_pair"):
        Gate(
            *([wrong], (Block("actor", 6, 0.1),), Unit("u", 1), 1),
            *([SeededNoise(0, 0)], [Ledger(None)]),
        )


def test_other_data_under_the_same_noise_are_not_released(tmp_path):
    """Two values under one noise would give their difference away; the round cannot be told anew."""
    path = tmp_path / "ledger.jsonl"
    valid = torch.ones(1, 4, dtype=torch.bool)
    for x in (1.0, 1.0):
        plan = plan_of(False, path=path)
        plan.begin_devices(0)
        release(plan, Contribution({"actor": torch.full((1, 4, 6), x)}, valid), 0)
    plan = plan_of(False, path=path)
    plan.begin_devices(0)
    with pytest.raises(PrivacyError, match="released before from other data"):
        release(plan, Contribution({"actor": torch.full((1, 4, 6), 2.0)}, valid), 0)


# --- configurations


REFUSED = [
    (("algo=ucbvi", "env=riverswim"), "privacy: local is noise on live users' devices"),
    (("algo=dppg_l2", "env=riverswim"), "privacy: local is noise on live users' devices"),
    (("algo=mopo", "env=pendulum", "data.id=a/b-v0"), "privacy: local is noise on live users'"),
    (
        ("privacy.accountant=rdp",),
        "privacy.accountant: privacy.mechanism=local takes pld, gaussian",
    ),
    (
        ("privacy.adjacency=replace_one",),
        "privacy.adjacency: privacy.mechanism=local is analysed under any_trajectory_pair",
    ),
    (
        ("privacy=fixed", "privacy.adjacency=any_trajectory_pair"),
        "privacy.adjacency: privacy.mechanism=gaussian is analysed under zero_out, replace_one",
    ),
    (
        ("privacy=fixed", "privacy.rewards=noised"),
        "privacy.rewards: noised is for noise",
    ),
    (("privacy.rewards=quiet",), "privacy.rewards: must be one of public, noised"),
    (
        ("privacy.sampling=poisson", "privacy.population=99"),
        "privacy.adjacency: privacy.sampling=poisson is",
    ),
    (("env.obs_high=[1,1,1,-4]",), "env.obs_high: must be elementwise above env.obs_low"),
    (("env.obs_low=[1]",), "env.obs_high: must be elementwise above env.obs_low"),
    (
        ("env.obs_noise_scale=[1,1,0,1]",),
        "env.obs_noise_scale: must be null or a list of numbers > 0",
    ),
    (("env.reward_low=1",), "env.reward_high: must be > env.reward_low=1, got 1.0"),
    (("env=gym", "env.id=my_pkg:MyEnv-v0"), "env.obs_low: privacy=local needs the public range of"),
    (("env.obs_low=null",), "env.obs_low: privacy=local needs the public range of each of the 4"),
    (("env.obs_noise_scale=[1]",), "env.obs_noise_scale: must be 4 numbers, got 1"),
    ((*CLOCK, "privacy.rewards=noised"), "env.reward_low: privacy.rewards=noised needs a public"),
    (
        ("privacy.z=0.3", "privacy.epsilon=10"),
        "privacy.epsilon: z = 0.3 costs more than epsilon 10;",
    ),
    (
        ("privacy.z=1e-6", "privacy.epsilon=1e-3"),
        "privacy.epsilon: z = 1e-06 costs more than epsilon 0.001",
    ),
]


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(("words", "line"), REFUSED, ids=str)
def test_what_has_no_meaning_is_refused_in_one_line(words, line):
    with pytest.raises(ConfigError) as caught:
        make_plan([compose(later_wins(["privacy=local", *words]))])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.fast_every(5)
@pytest.mark.parametrize(
    "env",
    sorted(
        e for e in set(choices("env")) - {"gym", "dmc", "logs"} if not e.startswith("sentiment")
    ),
)
def test_shipped_environments_have_public_ranges(env):
    shipped = compose(["algo=ppo", f"env={env}"]).env
    ranges = ranges_of(shipped, env_spec(shipped).obs_dim, rewards=True)
    assert ranges.reward is not None
    if shipped.obs_mean is not None:
        mean, std = np.array(shipped.obs_mean), np.array(shipped.obs_std)
        assert (ranges.low < mean).all()
        assert (mean < ranges.high).all()
        assert (ranges.high - ranges.low > 1.5 * std).all()


def test_ranges_are_part_of_what_a_run_is(tmp_path):
    local = config("env=cartpole")
    other = replace(local, env=replace(local.env, obs_low=[-9.0] * 4))
    noised = replace(local, privacy=replace(local.privacy, rewards="noised"))
    assert len({noise_key(local), noise_key(other), noise_key(noised)}) == 3
    RunDir(tmp_path).begin(local, [])
    with pytest.raises(ConfigError, match="obs_low"):
        RunDir(tmp_path).check_same(other)


# --- runs


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    "words",
    [
        ("algo=dppg", "env=cartpole", "algo.critic=shared", "env.obs_scaling=running"),
        ("algo=dppg", "env=pendulum", "env.obs_scaling=private", "env.reward_scaling=private"),
        ("algo=ppo", "env=cartpole"),
        pytest.param(
            ("algo=ppo", "env=pendulum", "privacy.rewards=noised", "algo.epochs=1"),
            marks=pytest.mark.slow,
        ),
        ("algo=a2c", *CLOCK),
        ("algo=dppg", *CLOCK, "algo.minibatches=2", "env.user=episode"),
        ("algo=sac", "env=pendulum", "algo.batch=4", "algo.updates=0.1"),
    ],
    ids=str,
)
def test_algorithms_train_on_what_devices_show(words, tmp_path):
    one = config(*words, "privacy.z=0.5")
    (result,) = run([one], [tmp_path / "run"], [[]])
    assert result.status == "done"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["guarantee"]["notion"] == "local"
    assert summary["guarantee"]["status"] == "formal"
    assert 100 < summary["epsilon"] < 1e9
    assert summary["epsilon"] == summary["epsilon_planned"]


def test_a_plan_says_mu_steps_and_epsilon(tmp_path, capsys):
    words = ("algo=dppg", "env=cartpole", "env.user=episode", "privacy.z=0.3", "plan_only=true")
    one = replace(config(*words), total_steps=10_000)
    (result,) = run([one], [tmp_path / "run"], [[]])
    shown = capsys.readouterr().out
    noise = "z = 0.3, on users' devices: mu 134.6 for one observation, 3012 for the 501 "
    assert f"  noise   {noise}" in shown
    assert "  privacy epsilon 4.55e+06 at delta 1e-05, formal: " in shown
    plan = describe_plan(make_plan([one]), 0)
    assert plan["local"]["observations"] == 501
    assert plan["local"]["noised_rewards"] == 0
    assert plan["local"]["mu"] == pytest.approx(3012.4, rel=1e-4)
    assert result.status == "planned"


def test_users_are_the_same_whatever_was_collected_before():
    one = config("algo=dppg", "env=cartpole")
    first, second = session_of(one), session_of(one)
    collected(first, 0)
    assert_same_users(collected(first, 1), collected(second, 1))
