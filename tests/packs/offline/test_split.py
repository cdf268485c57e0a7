import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import episode, some

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.trajectories import Trajectories, moments, split_users


def owned_by(users, seed=0):
    """Episodes of 1 to 3 steps; `users` [K], renumbered without gaps."""
    users = np.unique(users, return_inverse=True)[1].astype(np.int64)
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 4, len(users)))])
    steps = int(starts[-1])
    return Trajectories(
        observations=rng.random((steps + len(users), 2)),
        actions=rng.random((steps, 1)),
        rewards=rng.random(steps),
        terminated=np.zeros(steps, bool),
        starts=starts,
        users=users,
    )


def private_users(data, split):
    """User numbers in the split's order; checks that all episodes of a user are theirs."""
    found = []
    for u in range(split.users):
        a, b = split.private_starts[u : u + 2]
        (user,) = set(data.users[split.private_episodes[a:b]])
        found.append(int(user))
    return found


OWNERS = st.lists(st.integers(0, 30), min_size=1, max_size=80)
SHARE = st.decimals("0.01", "0.9", places=2).map(float)


@given(OWNERS, SHARE, st.integers(0, 9))
def test_users_are_whole_and_on_one_side(owners, share, seed):
    data = owned_by(owners, seed)
    count = data.user_count
    public = math.ceil(Fraction(str(share)) * count)
    if public == count:
        why = r"^data.public: .* leaves no private user" if count > 1 else r"^data.id: .* two users"
        with pytest.raises(ConfigError, match=why):
            split_users(data, share)
        return
    split = split_users(data, share)
    assert split.public_users == public
    assert split.users == count - public
    everything = np.concatenate([split.public, split.private_episodes])
    np.testing.assert_array_equal(np.sort(everything), np.arange(data.episodes))
    assert (np.diff(split.public) > 0).all()
    private = private_users(data, split)
    assert len(set(private)) == split.users
    assert set(private).isdisjoint(data.users[split.public])
    # Other numbers, as many users: the same users are private.
    again = split_users(owned_by(owners[::-1], seed + 1), share)
    assert private_users(owned_by(owners[::-1], seed + 1), again) == private


def test_a_limit_takes_users_from_the_front_of_the_same_order():
    data = owned_by(np.arange(50))
    order = [*split_users(data, 0.02).public, *split_users(data, 0.02).private_episodes]
    some_of_them = split_users(data, 0.2, limit=10)
    assert set(some_of_them.public) == set(order[:2])
    assert list(some_of_them.private_episodes) == order[2:10]


@given(
    st.integers(20, 60), st.integers(2, 5), st.sampled_from([0.05, 0.1, 0.3]), st.integers(19, 60)
)
def test_parts_are_disjoint_whatever_else_two_runs_set(count, parts, share, limit):
    data, found = owned_by(np.arange(count)), {}
    for k in range(1, parts + 1):
        one = split_users(data, share, min(limit, count), part=f"{k}/{parts}")
        found[k] = set(private_users(data, one))
        other = split_users(data, 0.02, part=f"{k % parts + 1}/{parts}")
        assert found[k].isdisjoint(private_users(data, other))
    whole = split_users(data, share, min(limit, count))
    assert sorted(x for part in found.values() for x in part) == sorted(private_users(data, whole))
    assert set(one.public) == set(whole.public)


def test_a_part_without_users():
    with pytest.raises(ConfigError, match=r"^data.part: no private user is in 1/10 of 5 users"):
        split_users(owned_by(np.arange(5)), 0.1, part="1/10")


def test_the_order_never_changes():
    split = split_users(owned_by(np.arange(10)), 0.1)
    order = [int(split.public[0]), *map(int, split.private_episodes)]
    assert order == [5, 0, 7, 1, 8, 2, 9, 6, 4, 3]


def test_the_share_is_a_decimal_number():
    assert 0.07 * 100 > 7
    assert split_users(owned_by(np.arange(100)), 0.07).public_users == 7


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_shares_outside(share):
    with pytest.raises(ConfigError, match=r"^data.public: must be above 0 and below 1"):
        split_users(owned_by([0, 1]), share)


def test_one_user_of_many():
    with pytest.raises(ConfigError, match=r"^data.users: .* at least two users, got 1"):
        split_users(owned_by([0, 1]), 0.5, 1)


@pytest.mark.parametrize("limit", [0, 6])
def test_limits_outside(limit):
    with pytest.raises(ConfigError, match=r"^data.users: must be from 1 to 5"):
        split_users(owned_by(np.arange(5)), 0.1, limit)


def test_moments_are_those_of_the_rows(monkeypatch):
    data = Trajectories.of(some(12))
    chosen = np.array([7, 1, 11])
    picked = [data.episode(int(k)) for k in chosen]
    observations = np.concatenate([e.observations for e in picked]).astype(float)
    for block in (3, 1 << 14):
        monkeypatch.setattr("privrl_bench.packs.offline.datasets.trajectories._BLOCK", block)
        obs_mean, obs_std = moments(data, chosen)
        np.testing.assert_allclose(obs_mean, observations.mean(0), rtol=1e-12)
        np.testing.assert_allclose(obs_std, observations.std(0), rtol=1e-12)
        assert obs_mean.dtype == obs_std.dtype == np.float64


def test_constant_numbers_have_a_deviation():
    rows = np.tile(np.array([5.0, 0.0, 1.0], np.float32), (4, 1))
    rows[0, 2] = 0
    constant = episode(3, 0, observations=rows)
    _, obs_std = moments(Trajectories.of([constant]), np.array([0]))
    np.testing.assert_allclose(obs_std, [5e-6, 1.0, np.sqrt(3) / 4])
