"""MOPO: pooled training of the ensemble against plain torch, and the share of real steps."""

import math

import pytest
import torch
from helpers import module_of, vector_of
from offline_runs import assert_same, config_of, played, session

from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.errors import ConfigError
from privrl_bench.functional.averaging import deployed
from privrl_bench.training.plan import make_plan
from privrl_bench.types import State


def one_round(one, state, index):
    """(users, next state) without a gate."""
    algo, streams = one.parts.algo, one.parts.streams
    users = one.collect(None, index)
    rows, valid, bypass = algo.user_update(state, users, streams).take()
    assert valid.all()
    tensors = dict(state.tensors) | bypass[POOLED]
    tensors["model"] = state.tensors["model"] + rows["model"][:, 0]
    return users, State(state.round + 1, tensors)


def by_hand(algo, config, members, optimizers, users, order):
    """Adam steps of each member of replica 0 on the pooled steps in `order`."""
    batch = users.mask[0] & users.valid[0][:, None]
    obs, after, rewards = users.obs[0][batch], users.next_obs[0][batch], users.rewards[0][batch]
    x = torch.cat([obs, users.actions[0][batch].float() / 2], -1)  # Pendulum's torque is within 2
    units = algo.ensemble.units
    y = (torch.cat([after - obs, rewards[:, None]], -1) - units.mean) / units.std
    softplus = torch.nn.functional.softplus
    for begin in range(0, len(order), config.model_batch):
        rows = order[begin : begin + config.model_batch]
        for member, optimizer in zip(members, optimizers, strict=True):
            mean, free = member(x[rows]).chunk(2, -1)
            log_var = -10 + softplus(10.5 - softplus(0.5 - free))
            variance = log_var.exp()
            likelihood = (mean - y[rows]) ** 2 / variance + log_var
            loss = (variance.detach() ** config.nll_beta * likelihood).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_pooled_training_equals_plain_torch(sets, beta: float) -> None:
    words = ("algo.model_batch=16", "algo.model_lr=1e-2", "algo.model_decay=1e-2")
    one = session("mopo", sets, *words, f"algo.nll_beta={beta}")
    algo, config, state = one.parts.algo, one.parts.config.algo, one.state
    members = [module_of(v, [4, 6, 8], torch.nn.SiLU) for v in state.tensors["model"][0].chunk(3)]
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=1e-2) for m in members]
    for index in range(3):
        users, state = one_round(one, state, index)
        count = int((users.mask & users.valid[..., None]).sum())
        g = one.parts.streams[0].torch("user_update", index)
        order = torch.randperm(count, generator=g)[torch.arange(400) % count]  # 10 users x 40 steps
        by_hand(algo, config, members, optimizers, users, order)
        expected = torch.cat([vector_of(m) for m in members])
        torch.testing.assert_close(state.tensors["model"][0], expected, rtol=1e-3, atol=1e-4)
    one.close()


def test_the_share_of_real_steps(sets) -> None:
    one = session("mopo", sets, "algo.model_batch=16", "algo.real_ratio=0.25")
    users, state = one_round(one, one.state, 0)
    fake = Batch(*(torch.full((1, 8, n), 99.0) for n in (3, 1)), *[torch.full((1, 8), 99.0)] * 3)
    fake = fake._replace(next_obs=torch.full((1, 8, 3), 99.0), discount=torch.full((1, 8), 0.5))
    mixed = one.parts.algo.real(
        state.tensors, fake, [one.parts.streams[0].torch("after_release", 0)]
    )
    for name in ("obs", "action", "reward", "next_obs"):
        found = getattr(mixed, name)[0]
        real = (found != 99.0).reshape(8, -1).all(-1)
        assert real.tolist() == [True] * 2 + [False] * 6
    batch = users.mask[0] & users.valid[0][:, None]
    for k in range(2):
        (match,) = ((users.obs[0][batch] == mixed.obs[0, k]).all(-1).nonzero()[0].tolist(),)
        (row,) = match
        assert torch.equal(users.next_obs[0][batch][row], mixed.next_obs[0, k])
        assert users.rewards[0][batch][row] == mixed.reward[0, k]
        torch.testing.assert_close(users.actions[0][batch][row] / 2, mixed.action[0, k])
    none = session("mopo", sets, "algo.real_ratio=0")
    draws = [one.parts.streams[0].torch("after_release", 0)]
    assert_same(none.parts.algo.real(state.tensors, fake, draws)._asdict(), fake._asdict())
    none.close()
    one.close()


def test_real_steps_are_kept_the_newest_last(sets) -> None:
    one = session("mopo", sets, "algo.model_batch=16")
    state, counts = one.state, []
    for index in range(2):
        before = state.tensors["kept_reward"][0]
        users, state = one_round(one, state, index)
        counts.append(400)
        now = state.tensors["kept_reward"][0]
        assert int(state.tensors["kept"]) == sum(counts)
        assert torch.equal(now[: -counts[-1]], before[counts[-1] :])
        batch = users.rewards[0][users.mask[0] & users.valid[0][:, None]]
        assert set(now[-counts[-1] :].tolist()) <= set(batch.tolist())
    one.close()


def test_a_round_may_have_fewer_steps_than_a_minibatch_in_every_replica(sets) -> None:
    words = ("privacy.users_per_round=1", "algo.model_batch=64")
    both = played("mopo", sets, *words, seeds=(0, 1))
    assert torch.isfinite(both["model"]).all()
    lone = played("mopo", sets, *words, seeds=(1,))
    for name in ("model", "actor"):
        torch.testing.assert_close(both[name][1:], lone[name], rtol=1e-3, atol=1e-4)


def test_two_seeds_together_are_two_seeds_alone(sets) -> None:
    # of other lengths
    words = ("algo.model_batch=8", "privacy.users_per_round=3", "algo.averaging=4")
    both = played("mopo", sets, *words, seeds=(0, 1))
    lone = played("mopo", sets, *words, seeds=(1,))
    for name, x in lone.items():
        torch.testing.assert_close(both[name][1:], x, rtol=1e-3, atol=1e-4, msg=name)


def test_an_averaged_policy_is_what_is_saved_and_training_does_not_use_it(sets) -> None:
    plain, mean = session("mopo", sets), session("mopo", sets, "algo.averaging=0")
    actors: list[torch.Tensor] = []
    step = mean.parts.algo._learner.step

    def seen(tensors, batch, draws):
        actors.append(step(tensors, batch, draws))
        return actors[-1]

    mean.parts.algo._learner.step = seen
    for trainer in (plain, mean):
        while not trainer.over:
            trainer.step()
    one, other = (x.state.tensors["actor"] for x in (plain, mean))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    expected = torch.stack([tensors["actor"] for tensors in actors]).mean(0)
    found = deployed(mean.state.tensors, mean.state.tensors["actor"])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found, mean.state.tensors["actor"])
    plain.close()
    mean.close()


def test_a_session_cut_in_two_is_whole(sets) -> None:
    whole = played("mopo", sets)
    for at in (3, 7):
        first, second = session("mopo", sets), session("mopo", sets)
        for _ in range(at):
            first.step()
        assert second.restore([first.snapshot()])
        while not second.over:
            second.step()
        assert_same(whole, second.state.tensors)
        first.close()
        second.close()


def test_early_stopping_freezes_what_is_learned(sets) -> None:
    one = session("mopo", sets, seeds=(0, 1))
    one.step()
    one.state.tensors["stopped"][0] = 1.0
    frozen = {k: x[0].clone() for k, x in one.state.tensors.items() if "model" in k or "kept" in k}
    for _ in range(2):
        one.step()
    for name, x in frozen.items():
        assert torch.equal(one.state.tensors[name][0], x), name
    assert not torch.equal(one.state.tensors["model"][1], frozen["model"])
    one.close()


def test_it_is_not_private_and_says_so(sets) -> None:
    guarantee = session("mopo", sets).parts.gate.guarantee(0)
    assert (guarantee.status, guarantee.epsilon) == ("none", math.inf)
    for mechanism in ("poisson", "fixed"):
        with pytest.raises(
            ConfigError, match=r"^privacy: algo=mopo is not private; .* algo=primorl; "
        ):
            make_plan([config_of("mopo", sets, f"privacy={mechanism}")])
