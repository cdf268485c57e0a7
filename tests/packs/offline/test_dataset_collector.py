"""Rounds of users from a dataset: whose data stand where, and how they are scaled."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers import members_of

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import DataConfig, PrivacyConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.packs.offline.datasets.minari_files import open_dataset, write_minari
from privrl_bench.packs.offline.datasets.trajectories import Episode, episode_of, moments
from privrl_bench.packs.offline.stored_users import DatasetCollector, open_data, scaled_by
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import SecureNoise, SeededNoise
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.plan import make_plan
from privrl_bench.users.collectors.collector import BatchShape

WORDS = (
    *("algo=primorl", "env=pendulum", "env.max_episode_steps=40", "data.public=0.1", "log=none"),
    *("rounds=3", "privacy.users_per_round=10", "algo.hidden=[8]", "algo.model_hidden=[6]"),
)


def config_of(data_id, *words):
    return compose(later_wins([*WORDS, f"data.id={data_id}", *words]))


def opened(data_id, *words, public=0.1, users=None):
    config = config_of(data_id, *words)
    spec = env_spec(replace(config.env, obs_scaling="none"))
    return config, open_data(DataConfig(data_id, public, users), spec)


def source_of(data_id, *words, replicas=1, slots=4, **more):
    config, data = opened(data_id, *words, **more)
    env = scaled_by(config.env, data)
    return data, env, DatasetCollector(data, env, BatchShape(replicas, slots, 40 * data.most))


def scaled(data, rows):
    mean, std = moments(data.trajectories, data.public)
    return np.clip((rows - mean) / np.sqrt(std**2 + 1e-8), -10, 10)


# --- rounds


def test_chances_stand_beside_their_actions(sets, monkeypatch) -> None:
    _, env, _ = source_of(sets)
    _, data = opened(sets)
    assert (
        DatasetCollector(data, env, BatchShape(1, 2, 40))
        .collect(None, 0, members_of([0]))
        .behavior_probs
        is None
    )
    known = (1 - np.random.default_rng(0).random(data.trajectories.steps)).astype(np.float32)
    monkeypatch.setattr(data.trajectories, "behavior_probs", known)
    users = DatasetCollector(data, env, BatchShape(1, 3, 40)).collect(None, 0, members_of([5, 3]))
    for slot, user in enumerate((5, 3)):
        (k,) = data.episodes_of(user)
        first, last = data.trajectories.starts[k : k + 2]
        assert users.behavior_probs[0, slot, : last - first].tolist() == known[first:last].tolist()
    assert (users.behavior_probs[~users.mask] == 1).all()


def test_a_round_is_the_trajectories_of_its_members(sets) -> None:
    data, _, source = source_of(sets, replicas=2)
    members = [np.array([5, 0, 53]), np.array([7])]
    users = source.collect(None, 0, members_of(*members))
    assert users.obs.shape == (2, 4, 40, 3)
    assert users.valid.tolist() == [[True] * 3 + [False], [True] + [False] * 3]
    for r, who in enumerate(members):
        for slot, user in enumerate(who):
            (k,) = data.episodes_of(user)
            episode = data.trajectories.episode(int(k))
            n = len(episode.rewards)
            expected = scaled(data, episode.observations)
            np.testing.assert_allclose(users.obs[r, slot, :n], expected[:-1], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(
                users.next_obs[r, slot, :n], expected[1:], rtol=1e-5, atol=1e-6
            )
            assert np.array_equal(users.actions[r, slot, :n], episode.actions)
            np.testing.assert_allclose(
                users.rewards[r, slot, :n], 0.01 * episode.rewards, rtol=1e-6
            )
            assert users.mask[r, slot].tolist() == [True] * n + [False] * (40 - n)
            assert users.done[r, slot].nonzero().flatten().tolist() == [n - 1]
            assert not users.terminated[r, slot].any()
        assert users.stats[r]["train/episodes"] == len(who)
    for x in (users.obs, users.next_obs, users.actions, users.rewards):
        assert not x[~users.mask].any()
    returns = [data.trajectories.returns()[data.episodes_of(u)[0]] for u in members[0]]
    assert users.stats[0]["train/return_mean"] == pytest.approx(np.mean(returns))


def test_numbers_that_nobody_has_are_absent_people(sets) -> None:
    data, _, source = source_of(sets)
    assert source.population == data.users == 54
    users = source.collect(None, 0, members_of([54, 3, 1000]))
    assert users.valid.tolist() == [[False, True, False, False]]
    assert not users.mask[0, [0, 2, 3]].any()
    assert np.isnan(source.collect(None, 0, members_of([54])).stats[0]["train/return_mean"])


def test_public_steps_are_those_of_the_public_part(sets) -> None:
    data, _, source = source_of(sets)
    public = source.public()
    episodes = [data.trajectories.episode(int(k)) for k in data.public]
    rows = np.concatenate([scaled(data, e.observations)[:-1] for e in episodes])
    np.testing.assert_allclose(public.obs, rows, rtol=1e-5, atol=1e-6)
    rows = np.concatenate([scaled(data, e.observations)[1:] for e in episodes])
    np.testing.assert_allclose(public.next_obs, rows, rtol=1e-5, atol=1e-6)
    assert np.array_equal(public.actions, np.concatenate([e.actions for e in episodes]))
    rewards = 0.01 * np.concatenate([e.rewards for e in episodes])
    np.testing.assert_allclose(public.rewards, rewards, rtol=1e-6)


@pytest.fixture(scope="module")
def families(sets) -> str:
    """30 users with 1 to 3 episodes of 5 to 9 steps; some terminate."""
    space = gym.make("Pendulum-v1")
    rng = np.random.default_rng(0)

    def one(k):
        steps = 5 + k % 5
        last = np.arange(steps) == steps - 1
        return Episode(
            rng.normal(size=(steps + 1, 3)).clip(-1, 1).astype(np.float32),
            rng.uniform(-2, 2, (steps, 1)).astype(np.float32),
            -rng.random(steps),
            last & (k % 2 == 0),
            last & (k % 2 == 1),
            f"user{k % 30 if k % 30 < 10 else k}",
        )

    spaces = space.observation_space, space.action_space
    write_minari(
        "families-v0", (one(k) for k in range(50)), "Pendulum-v1", *spaces, {"users": "simulated"}
    )
    return "families-v0"


def test_all_episodes_of_a_user_stand_one_after_the_other(families) -> None:
    data, _, source = source_of(families)
    assert data.most == 2
    user = next(u for u in range(data.users) if len(data.episodes_of(u)) == 2)
    users = source.collect(None, 0, members_of([user]))
    first, second = (data.trajectories.episode(int(k)) for k in data.episodes_of(user))
    n, m = len(first.rewards), len(second.rewards)
    assert users.mask[0, 0].nonzero().flatten().tolist() == list(range(n + m))
    assert users.done[0, 0].nonzero().flatten().tolist() == [n - 1, n + m - 1]
    assert users.terminated[0, 0, [n - 1, n + m - 1]].tolist() == [
        bool(first.terminated[-1]),
        bool(second.terminated[-1]),
    ]
    rows = scaled(data, np.concatenate([first.observations[1:], second.observations[1:]]))
    np.testing.assert_allclose(users.next_obs[0, 0, : n + m], rows, rtol=1e-5, atol=1e-6)
    unit = make_plan([config_of(families)]).gate.unit
    assert unit.text.startswith("all trajectories of one user, up to 2, of at most 40 steps")
    assert unit.participation is None


def test_split_scaling_becomes_constants_of_the_configuration(sets) -> None:
    parts = make_plan([config_of(sets)])
    mean, std = moments(parts.users.data.trajectories, parts.users.data.public)
    env = parts.config.env
    assert (env.obs_scaling, env.obs_mean, env.obs_std) == ("public", mean.tolist(), std.tolist())
    assert parts.config.privacy.population == parts.users.data.users == 54
    given = (
        "their data give {}the units of the model, early stopping and policy training; no user's"
    )
    assert given.format("the scaling, ") in parts.gate.guarantee(0).notes["dataset"]
    built = make_plan([config_of(sets, "env.obs_scaling=public")])
    own = built.config.env
    assert given.format("") in built.gate.guarantee(0).notes["dataset"]
    assert own.obs_std == [0.7, 0.7, 4.0]


@pytest.mark.parametrize("people", [54, 60])
def test_a_dataset_is_protected_under_zero_out(sets, people) -> None:
    """Its number of users decides who is public, so no claim is about a dataset of other size."""
    words = () if people == 54 else ("privacy.population=60",)
    config = config_of(sets, *words)
    assert config.privacy.adjacency == "add_or_remove"
    parts = make_plan([config])
    guarantee, planned = parts.gate.guarantee(0), describe_plan(parts, 0)
    assert guarantee.adjacency == "zero-out"
    assert planned["event"]["adjacency"] == "zero_out"
    assert planned["event"]["population"] == people
    assert "add-or-remove" not in json.dumps(planned)
    assert set(parts.gate.planned_epsilons(0)) == {"zero_out"}
    assert "54, " in guarantee.notes["neighbours"]
    assert "taken as public" in guarantee.notes["neighbours"]
    event = replace(parts.gate.event(0), adjacency="add_or_remove")
    assert guarantee.epsilon == ledger_epsilon([event] * 3, config.privacy.delta)


def test_fewer_users_and_another_share(sets) -> None:
    _, data = opened(sets, users=20, public=0.25)
    assert (data.public_users, data.users, data.most) == (5, 15, 1)


# --- what does not fit


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env.max_episode_steps=39"], r"^data\.id: .* episode of 40 steps; .* allows 39"),
        (["env=cartpole_balance"], r"^data\.id: .* has 3 observations .* has 5"),
        (["env=cartpole"], r"^(data\.id|env): "),
        (["data.id=null"], r"^data\.id: algo=primorl learns from a dataset"),
        (["data.id=pendulum/randon-v0"], r"^data\.id: no dataset .*pendulum/random-v0"),
        (["privacy.population=53"], r"^privacy\.population: must be at least the 54 private"),
        (
            ["privacy.users_per_round=55"],
            r"^privacy\.users_per_round: must be at most the 54 private .*55$",
        ),
        (["data.users=1"], r"^data\.users: "),
        (["data.users=61"], r"^data\.users: must be from 1 to 60"),
        (["data.public=1"], r"^data\.public: must be above 0 and below 1"),
        (["data.public=0.99", "data.users=3"], r"^data\.public: .* leaves no private user"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_what_does_not_fit_is_one_clear_line(sets, words, message) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        make_plan([config_of(sets, *words)])
    assert "\n" not in str(found.value)


def test_live_algorithms_take_no_dataset(sets) -> None:
    for algo in ("sac", "dppg"):
        with pytest.raises(ConfigError, match=rf"^data\.id: algo={algo} acts with its own policy"):
            compose([f"algo={algo}", "env=pendulum", f"data.id={sets}"])
    with pytest.raises(ConfigError, match=r"^env\.obs_scaling: split is the public part"):
        compose(["algo=dppg", "env=pendulum", "env.obs_scaling=split"])


def test_the_dataset_is_what_was_written(sets) -> None:
    found = open_dataset(sets)
    assert (found.episodes, found.user_count) == (60, 60)
    assert sorted(found.lengths)[0] == 20
    assert sorted(found.lengths)[-1] == 40


# --- who takes part


def plan_of(population=40, expected=6, seeds=(0,), noise=None, **changes):
    settings = {"sampling": "poisson", "adjacency": "add_or_remove", "population": population}
    config = PrivacyConfig(users_per_round=expected, **(settings | changes))
    noises = [noise or SeededNoise(s, 1) for s in seeds]
    ledgers = [Ledger(None) for _ in seeds]
    unit, blocks = Unit("u", None), (Block("a", 1, 1.0),)
    return Gate([config] * len(seeds), blocks, unit, 5000, noises, ledgers)


@pytest.mark.parametrize("noise", [None, SecureNoise()], ids=["seeded", "secure"])
def test_each_person_joins_with_q_by_themselves(noise) -> None:
    """Sizes are binomial (but for the cap), people and pairs of people as frequent as they should be."""
    from scipy import stats

    rounds, n, q = 3000, 40, 6 / 40
    plan = plan_of(noise=noise)
    joined = np.zeros((rounds, n), bool)
    for index in range(rounds):
        (who,) = plan.draw(index, 30, False).numbers()
        assert len(set(who)) == len(who) <= plan.slots
        joined[index, who] = True
    sizes = joined.sum(1)
    edges = [0, 3, 4, 5, 6, 7, 8, 10, n + 1]
    observed = np.histogram(sizes, edges)[0]
    expected = rounds * np.diff(stats.binom.cdf(np.array(edges) - 1, n, q))
    assert stats.chisquare(observed, expected * rounds / expected.sum()).pvalue > 1e-7
    # Counts of people: their spread given the sizes is that of sampling without replacement.
    each = joined.sum(0)
    variance = (sizes / n * (1 - sizes / n)).sum()
    chi2 = ((each - sizes.sum() / n) ** 2).sum() / variance * (n - 1) / n
    assert 1e-7 < stats.chi2.cdf(chi2, n - 1) < 1 - 1e-7
    # Pairs with the first person, given the sizes: they share that person, so they vary together.
    share, joins = (sizes - 1) / (n - 1), sizes / n
    pairs = (joined[:, :1] & joined[:, 1:]).sum(1) / (n - 1)
    spread = np.sqrt((share**2 * joins * (1 - joins)).sum())
    assert abs((pairs - share * joins).sum()) < 6 * spread
    # The next round does not depend on this one.
    again = (joined[1:] & joined[:-1]).mean()
    assert again == pytest.approx(q * q, abs=6 * q / np.sqrt(rounds * n))


def test_the_place_of_a_person_in_their_round_is_uniform() -> None:
    from scipy import stats

    plan = plan_of(population=12, expected=4, seeds=(3,))
    places = np.zeros(4)
    for index in range(4000):
        (who,) = plan.draw(index, 12, False).numbers()
        if len(who) == 4 and 0 in who:
            places[int(np.flatnonzero(who == 0)[0])] += 1
    assert places.sum() > 200
    assert stats.chisquare(places).pvalue > 1e-4


def test_members_are_a_function_of_seed_and_round() -> None:
    both, lone = plan_of(seeds=(0, 1)), plan_of(seeds=(1,))
    for index in (4, 0, 4):
        assert np.array_equal(
            both.draw(index, 40, False).numbers()[1], lone.draw(index, 40, False).numbers()[0]
        )
    assert len(lone.draw(0, 40, False).numbers()[0]) == lone.draw(0, None, False).sizes[0]
    rounds = [tuple(lone.draw(i, 40, False).numbers()[0]) for i in range(20)]
    assert len(set(rounds)) == 20


def test_who_is_there_does_not_change_who_is_drawn() -> None:
    """The dataset's size is private: the draw is over the public population."""
    plan = plan_of()
    for index in range(20):
        few, many = plan.draw(index, 10, False).numbers(), plan.draw(index, 40, False).numbers()
        assert np.array_equal(few[0], many[0])


def test_cohorts_of_fixed_size_and_too_many_people_are_refused() -> None:
    fixed = plan_of(sampling="fixed", adjacency="zero_out", population=None)
    with pytest.raises(PrivacyError, match="fixed size"):
        fixed.draw(0, 40, False).numbers()
    with pytest.raises(PrivacyError, match="41 users in a population of 40"):
        plan_of().draw(0, 41, False).numbers()


def test_without_a_mechanism_any_u_take_part() -> None:
    plan = plan_of(mechanism="none", z=0.0, sampling="fixed", adjacency="zero_out", population=None)
    assert sorted(plan.draw(0, 6, False).numbers()[0]) == list(range(6))
    assert sorted(plan.draw(0, 4, False).numbers()[0]) == list(range(4))
    assert len(set(plan.draw(1, 100, False).numbers()[0])) == 6


def test_the_moments_accountants_number_is_what_papers_print() -> None:
    """PriMORL's table 0.2: q = 1e-3, z = 0.25, 1,000 rounds."""
    config = PrivacyConfig(
        sampling="poisson", adjacency="add_or_remove", population=30_000, users_per_round=30, z=0.25
    )
    unit, blocks = Unit("u", None), (Block("a", 1, 1.0),)
    plan = Gate([config], blocks, unit, 1000, [SeededNoise(0, 1)], [Ledger(None)])
    assert plan.paper_epsilon(0) == pytest.approx(38.4467, abs=1e-3)
    assert torch.isfinite(torch.tensor(plan.planned_epsilon(0)))
    assert plan.planned_epsilon(0) < plan.paper_epsilon(0)


@pytest.mark.parametrize(("factor", "message"), [(1.0 + 1e-6, ""), (1.5, "between -3 and 3; env=")])
def test_actions_outside_the_box_are_refused(tmp_path, monkeypatch, factor, message) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    box = gym.spaces.Box(-4.0, 4.0, (1,))
    actions = np.tile(np.array([[-2.0], [2.0]], np.float32), (5, 1)) * np.float32(factor)
    zeros = np.zeros((11, 3), np.float32)
    episodes = [episode_of(zeros, actions, np.zeros(10, np.float32), False) for _ in range(20)]
    seen = gym.spaces.Box(-9.0, 9.0, (3,))
    write_minari(
        "mine/far-v0", episodes, None, seen, box, {"description": "d", "users": "simulated"}
    )
    if message:
        with pytest.raises(ConfigError, match=message):
            opened("mine/far-v0")
    else:
        opened("mine/far-v0")
