"""PPO against plain torch, and learning that can fail."""

from dataclasses import fields, replace

import pytest
import torch
from helpers import BOX, CHOICE, context, learn, own, random_users, rollout_of, shipped
from pooled_reference import HIDDEN, ROUNDS, STEPS, STREAMS, USERS, Twin, made, one_round

from privrl_bench.algorithms.policy_gradient import ppo
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import PpoConfig
from privrl_bench.algorithms.policy_gradient.ppo import Ppo
from privrl_bench.envs.registry import env_spec
from privrl_bench.types import State


def in_single(users):
    """The users in single precision, in which training is compiled."""
    columns = {f.name: getattr(users, f.name) for f in fields(users)}
    return replace(
        users,
        **{
            name: x.float()
            for name, x in columns.items()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        },
    )


def ppo_round(twin, users, r, round_index):
    c = twin.config
    obs, actions, values, old, advantages, targets = twin.pool(users, r)
    lr = c.lr * (1 - round_index / ROUNDS)
    g = STREAMS[r].torch("user_update", round_index)
    size = len(obs) // c.minibatches
    for _ in range(c.epochs):
        order = torch.randperm(len(obs), generator=g)
        for begin in range(0, len(obs), size):
            rows = order[begin : begin + size]
            found = twin.policy.distribution(obs[rows])
            ratio = (found.log_prob(actions[rows]) - old[rows]).exp()
            gain = advantages[rows]
            if c.normalize_advantage:
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - c.ratio_clip, 1 + c.ratio_clip)
            policy_loss = torch.max(-gain * ratio, -gain * clipped).mean()
            new = twin.critic(obs[rows])[:, 0]
            error = (new - targets[rows]) ** 2
            if c.clip_value_loss:
                near = values[rows] + (new - values[rows]).clamp(-c.ratio_clip, c.ratio_clip)
                error = torch.max(error, (near - targets[rows]) ** 2)
            loss = policy_loss - c.entropy_coef * found.entropy().mean()
            twin.descend(loss + c.value_coef * 0.5 * error.mean(), lr)


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"clip_value_loss": False, "normalize_advantage": False, "max_grad_norm": 50.0}],
    ids=["cleanrl", "other"],
)
def test_three_rounds_of_ppo_equal_plain_torch(spec, changes) -> None:
    config = PpoConfig(
        **{"hidden": HIDDEN, "lr": 3e-2, "epochs": 3, "minibatches": 4, "entropy_coef": 0.05}
        | changes
    )
    algo, state = made(Ppo, config, spec)
    twins = [
        Twin(spec, config, state, r, lambda p: torch.optim.Adam(p, lr=1.0, eps=1e-5))
        for r in range(2)
    ]
    for index in range(3):
        users = random_users(spec, 2, USERS, STEPS, seed=index)
        state, valid = one_round(algo, state, users)
        assert valid.all()
        for r, twin in enumerate(twins):
            ppo_round(twin, users, r, index)
            twin.same_as(state, r)


def test_it_learns_the_chain_that_random_play_cannot() -> None:
    config = own("MyEnv", user="segment")
    rollout, _ = rollout_of(config, [0, 1], 8, 40)
    chosen = PpoConfig(hidden=[16], lr=0.01, epochs=4, minibatches=4, entropy_coef=0.01)
    algo = Ppo(chosen, context(env_spec(config), 1.0, 25, 1))
    rollout._policy = algo.policy
    _, curve = learn(algo, rollout, 25)
    assert curve[0] < 3.0  # uniform play: 17 / 16
    assert curve[-1] > 15.0


@pytest.mark.slow
def test_ppo_learns_cartpole_far_above_random() -> None:
    config = shipped("cartpole")
    rollout, _ = rollout_of(config, [0, 1], 8, 128)
    settings = {"gae_lambda": 0.95, "entropy_coef": 0.01, "lr": 2.5e-3}
    chosen = PpoConfig(hidden=[32], epochs=4, minibatches=4, **settings)
    algo = Ppo(chosen, context(env_spec(config), 1.0, 30, 1))
    rollout._policy = algo.policy
    _, curve = learn(algo, rollout, 30)
    assert curve[0] < 40.0  # random: about 24
    assert sum(curve[-3:]) / 3 > 120.0


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"clip_value_loss": False, "normalize_advantage": False, "max_grad_norm": 50.0}],
    ids=["cleanrl", "other"],
)
def test_compiled_rounds_equal_tensor_operations(spec, changes, monkeypatch) -> None:
    config = PpoConfig(
        **{"hidden": HIDDEN, "lr": 3e-2, "epochs": 3, "minibatches": 5, "entropy_coef": 0.05}
        | changes
    )
    algo, begin = made(Ppo, config, spec)
    begin = State(0, {name: x.float() for name, x in begin.tensors.items()})

    def three_rounds(compiled):
        monkeypatch.setattr(ppo, "uses_kernels", lambda *_: compiled)
        state = begin
        for index in range(3):
            state, _ = one_round(algo, state, in_single(random_users(spec, 2, USERS, STEPS, index)))
        return state.tensors

    got, expected = three_rounds(True), three_rounds(False)
    assert not torch.equal(got["actor"], expected["actor"])  # two implementations
    for name, x in expected.items():
        assert float((x - begin.tensors[name]).norm()) > 1e-4
        torch.testing.assert_close(got[name], x, rtol=2e-3, atol=2e-4)
