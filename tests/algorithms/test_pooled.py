"""Tests that all pooled algorithms share."""

from dataclasses import replace

import pytest
import torch
from helpers import BOX, CHOICE, random_users, tensors
from pooled_reference import HIDDEN, STEPS, STREAMS, USERS, made, one_round

from privrl_bench.algorithms.policy_gradient.a2c import A2c
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import A2cConfig, PpoConfig
from privrl_bench.algorithms.policy_gradient.ppo import Ppo
from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.types import State

# A minibatch of one step has no advantage once it is normalised, so PPO would not move the policy.
PPO = PpoConfig(hidden=HIDDEN, lr=3e-2, epochs=2, minibatches=4)
KINDS = pytest.mark.parametrize(
    ("kind", "config"), [(Ppo, PPO), (A2c, A2cConfig(hidden=HIDDEN))], ids=["ppo", "a2c"]
)


@KINDS
@pytest.mark.parametrize("what", ["invalid", "nan"])
def test_a_round_with_a_broken_user_is_skipped_for_their_replica_alone(kind, config, what) -> None:
    algo, state = made(kind, config, CHOICE)
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
    assert change.norm() > 1e-4
    torch.testing.assert_close(rows["actor"][1, 0], change)


@KINDS
def test_a_replica_is_the_same_alone_and_in_company(kind, config) -> None:
    algo, state = made(kind, config, BOX)
    state = State(0, {n: x.float() for n, x in state.tensors.items()})
    users = random_users(BOX, 2, USERS, STEPS, seed=0)
    for name in ("obs", "next_obs", "actions", "rewards"):
        setattr(users, name, getattr(users, name).float())
    rows, _, bypass = algo.user_update(state, users, STREAMS).take()
    both = rows | bypass[POOLED]
    assert (both["actor"].norm(dim=-1) > 1e-4).all()
    for r in range(2):
        one = State(0, {name: x[r : r + 1] for name, x in state.tensors.items()})
        own = replace(users, **{name: x[r : r + 1] for name, x in tensors(users).items()})
        rows, _, bypass = algo.user_update(one, own, STREAMS[r : r + 1]).take()
        alone = rows | bypass[POOLED]
        assert alone.keys() == both.keys()
        for name, x in alone.items():
            if kind is Ppo or name == "actor":
                assert torch.equal(x[0], both[name][r]), name
            else:  # the last bits of tensor operations depend on the shape
                torch.testing.assert_close(x[0], both[name][r], rtol=1e-4, atol=1e-9)


@KINDS
def test_what_it_declares(kind, config) -> None:
    algo, _ = made(kind, config, CHOICE)
    assert algo.config.traits.pools_users
    assert list(algo.terms().caveats) == [POOLED]
