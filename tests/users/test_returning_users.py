"""Users who keep their own steps: in any order of joining, and none before they come."""

import numpy as np
import pytest
import torch
from helpers import members_of, own, rollout_of, shipped, sized, tensors

from privrl_bench.envs.registry import env_spec
from privrl_bench.users.collectors.returning_users import ReturningCollector

STEPS = 30


def arrivals(index, new=2, every=2):
    turn, rest = divmod(index, every)
    return range(0) if rest else range(turn * new, (turn + 1) * new)


def made(config=None, seeds=(0, 1), people=6, room=4):
    config = config or shipped("cartpole").__class__(
        **{**vars(shipped("cartpole")), "user": "episode", "max_episode_steps": STEPS}
    )
    rollout, actor = rollout_of(config, list(seeds), 2, STEPS)
    return ReturningCollector(rollout, env_spec(config), people, room, arrivals), actor


def test_everybody_has_their_own_episode_and_number_in_any_order():
    people, actor = made()
    alone, _ = made()
    met = {}
    for index in range(6):
        coming = arrivals(index)
        if coming:
            users = alone.live.collect(actor, index, sized(2, 2))
            for p, slot in zip(coming, range(2), strict=True):
                met[p] = {k: x[:, slot].clone() for k, x in tensors(users).items()}
        g = np.random.default_rng(index)
        members = [g.permutation(6)[:4] for _ in range(2)]
        users = people.collect(actor, index, members_of(*members))
        found = tensors(users)
        numbers = found.pop("numbers")
        for r in range(2):
            for slot, p in enumerate(members[r]):
                assert bool(users.valid[r, slot]) == (p in met)
                assert numbers[r, slot] == (p if p in met else -1)
                for name, x in found.items():
                    if p in met:
                        assert torch.equal(x[r, slot], met[p][name][r]), (name, p)
                    else:
                        assert not x[r, slot].any(), (name, p)
    assert len(met) == 6
    lengths = {p: int(x["mask"][0].sum()) for p, x in met.items()}
    assert len(set(lengths.values())) > 2  # they do differ


def test_slots_without_a_member_are_empty():
    people, actor = made()
    users = people.collect(actor, 0, members_of([1], []))
    assert users.valid.tolist() == [[True, False, False, False], [False] * 4]
    assert users.numbers is not None
    assert users.numbers.tolist() == [[1, -1, -1, -1], [-1] * 4]
    assert not users.mask[1].any()
    assert [s["train/episodes"] for s in users.stats] == [2.0, 2.0]


def test_rounds_in_which_nobody_comes_play_nothing():
    people, actor = made()
    first = people.collect(actor, 0, members_of([0, 1], [1, 0]))
    later = people.collect(2 * actor, 1, members_of([0, 1], [1, 0]))
    for name, x in tensors(first).items():
        assert torch.equal(x, tensors(later)[name]), name
    assert [s["train/episodes"] for s in later.stats] == [0.0, 0.0]


@pytest.mark.parametrize("spoiled", ["obs", "rewards"])
def test_people_with_broken_data_keep_nothing(spoiled):
    config = own("Clock", user="episode", kwargs={"spoiled": spoiled}, max_episode_steps=STEPS)
    people, actor = made(config)
    users = people.collect(actor, 0, members_of([0, 1], [1, 0]))
    broken = sum(s["train/invalid_users"] for s in users.stats)
    assert broken == int((~users.valid[:, :2]).sum())
    found = tensors(users)
    found.pop("numbers")  # of everyone who has arrived
    for x in found.values():
        assert torch.isfinite(x.double()).all()
        assert not x[~users.valid].any()


def test_a_state_brings_them_back():
    people, actor = made()
    for index in range(4):
        before = people.collect(actor, index, members_of([0, 1, 2, 3], [3, 2, 5, 1]))
    saved = {name: x.clone() for name, x in people.get_state().items()}
    other, _ = made(seeds=(5, 6))
    other.collect(3 * actor, 0, members_of([0], [0]))
    assert other.set_state(saved)
    after = other.collect(actor, 5, members_of([0, 1, 2, 3], [3, 2, 5, 1]))
    for name, x in tensors(before).items():
        assert torch.equal(x, tensors(after)[name]), name
