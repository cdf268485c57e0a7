"""Tests that all pooled algorithms share."""

import pytest
import torch
from helpers import BOX, CHOICE, random_users, tensors
from pooled_reference import HIDDEN, STEPS, STREAMS, USERS, made, one_round

from privrl_bench.algorithms.policy_gradient.a2c import A2c
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import A2cConfig, PpoConfig
from privrl_bench.algorithms.policy_gradient.ppo import Ppo
from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.types import State

KINDS = pytest.mark.parametrize(
    ("kind", "config"), [(Ppo, PpoConfig), (A2c, A2cConfig)], ids=["ppo", "a2c"]
)


@KINDS
@pytest.mark.parametrize("what", ["invalid", "nan"])
def test_a_round_with_a_broken_user_is_skipped_for_their_replica_alone(kind, config, what) -> None:
    algo, state = made(kind, config(hidden=HIDDEN), CHOICE)
    sound, _ = one_round(algo, state, random_users(CHOICE, 2, USERS, STEPS, seed=0))
    users = random_users(CHOICE, 2, USERS, STEPS, seed=0)
    if what == "invalid":
        users.valid[0, 1] = False
    else:
        users.rewards[0, 1, 2] = torch.nan
    rows, valid, bypass = algo.user_update(state, users, STREAMS).take()
    assert valid.tolist() == [[False], [True]]
    for name, x in bypass[POOLED].items():
        assert torch.equal(x[0], state.tensors[name][0]), name
        torch.testing.assert_close(x[1], sound.tensors[name][1], rtol=0, atol=0)
    change = sound.tensors["actor"][1] - state.tensors["actor"][1]
    torch.testing.assert_close(rows["actor"][1, 0], change)


@KINDS
def test_a_replica_is_the_same_alone_and_in_company(kind, config) -> None:
    algo, state = made(kind, config(hidden=HIDDEN), BOX)
    state = State(0, {n: x.float() for n, x in state.tensors.items()})
    users = random_users(BOX, 2, USERS, STEPS, seed=0)
    for name in ("obs", "next_obs", "actions", "rewards"):
        setattr(users, name, getattr(users, name).float())
    both, _, _ = algo.user_update(state, users, STREAMS).take()
    half = State(0, {n: x[1:] for n, x in state.tensors.items()})
    for name, x in tensors(users).items():
        setattr(users, name, x[1:])
    alone, _, _ = algo.user_update(half, users, STREAMS[1:]).take()
    assert torch.equal(both["actor"][1:], alone["actor"])


@KINDS
def test_what_it_declares(kind, config) -> None:
    algo, _ = made(kind, config(), CHOICE)
    assert algo.config.traits.pools_users
    assert list(algo.terms().caveats) == [POOLED]
