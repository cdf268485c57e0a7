"""PPO and A2C against plain torch in the manner of CleanRL, and learning that can fail."""

import pytest
import torch
from helpers import (
    BOX,
    CHOICE,
    TorchPolicy,
    in_double,
    learn,
    module_of,
    own,
    random_users,
    rollout_of,
    shipped,
    slow_gae,
    vector_of,
)

from privrl_bench.algos.a2c import A2c
from privrl_bench.algos.base import Setup
from privrl_bench.algos.pooled import POOLED
from privrl_bench.algos.ppo import Ppo
from privrl_bench.envs.registry import env_spec
from privrl_bench.schema import A2cConfig, PpoConfig
from privrl_bench.streams import Streams
from privrl_bench.types import State

HIDDEN = [6, 5]
STREAMS = [Streams(3), Streams(8)]
ROUNDS = 10
USERS, STEPS = 3, 8


def made(kind, config, spec):
    algo = kind(config, Setup(spec, 1.0, ROUNDS))
    state = algo.init(STREAMS)
    g = torch.Generator().manual_seed(4)
    for part in ("actor", "critic"):
        x = state.tensors[part]
        state.tensors[part] = x + 0.4 * torch.randn(x.shape, generator=g)
    return algo, in_double(state)


def one_round(algo, state, users):
    """(next state, valid) without a gate."""
    rows, valid, bypass = algo.local(state, users, STREAMS).take()
    new = dict(state.tensors) | bypass[POOLED]
    new["actor"] = state.tensors["actor"] + rows["actor"][:, 0]
    return State(state.round + 1, new), valid


class Twin:
    """One replica in plain torch: modules, one optimiser over both, a flat pool of steps."""

    def __init__(self, spec, config, state, r, optimizer):
        self.config = config
        self.widths = [spec.obs_dim, *HIDDEN, 1]
        self.policy = TorchPolicy(spec, state.tensors["actor"][r], HIDDEN)
        self.critic = module_of(state.tensors["critic"][r], self.widths)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self.optimizer = optimizer(self.parameters)

    def pool(self, users, r):
        obs = users.obs[r].reshape(-1, users.obs.shape[-1])
        actions = users.actions[r].reshape(len(obs), *users.actions.shape[3:])
        with torch.no_grad():
            values = self.critic(users.obs[r])[..., 0]
            after = self.critic(users.next_obs[r])[..., 0]
            old = self.policy.distribution(obs).log_prob(actions)
        advantages = torch.stack(
            [
                slow_gae(
                    users.rewards[r, u],
                    values[u],
                    after[u],
                    users.terminated[r, u],
                    users.ended[r, u],
                    self.config.gamma,
                    self.config.gae_lambda,
                )
                for u in range(USERS)
            ]
        )
        targets = (advantages + values).flatten()
        return obs, actions, values.flatten(), old, advantages.flatten(), targets

    def descend(self, loss, lr):
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()

    def same_as(self, state, r):
        for mine, theirs in (
            (self.policy.vector(), state.tensors["actor"][r]),
            (vector_of(self.critic), state.tensors["critic"][r]),
        ):
            torch.testing.assert_close(theirs, mine, rtol=1e-7, atol=1e-8)


def ppo_round(twin, users, r, round_index):
    c = twin.config
    obs, actions, values, old, advantages, targets = twin.pool(users, r)
    lr = c.lr * (1 - round_index / ROUNDS)
    g = STREAMS[r].torch("local", round_index)
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


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
@pytest.mark.parametrize("normalize", [True, False])
def test_three_rounds_of_a2c_equal_plain_torch(spec, normalize) -> None:
    config = A2cConfig(
        hidden=HIDDEN, lr=1e-2, entropy_coef=0.05, normalize_advantage=normalize, max_grad_norm=0.3
    )
    algo, state = made(A2c, config, spec)
    twins = [
        Twin(spec, config, state, r, lambda p: torch.optim.RMSprop(p, alpha=0.99, eps=1e-5))
        for r in range(2)
    ]
    for index in range(3):
        users = random_users(spec, 2, USERS, STEPS, seed=index)
        state, _ = one_round(algo, state, users)
        for r, twin in enumerate(twins):
            obs, actions, _, _, advantages, targets = twin.pool(users, r)
            if normalize:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            found = twin.policy.distribution(obs)
            error = (twin.critic(obs)[:, 0] - targets) ** 2
            loss = -(found.log_prob(actions) * advantages).mean()
            loss = loss + 0.5 * error.mean() - 0.05 * found.entropy().mean()
            twin.descend(loss, config.lr * (1 - index / ROUNDS))
            twin.same_as(state, r)


@pytest.mark.parametrize("kind", [Ppo, A2c])
@pytest.mark.parametrize("what", ["invalid", "nan"])
def test_a_round_with_a_broken_user_is_skipped_for_her_replica_alone(kind, what) -> None:
    config = (PpoConfig if kind is Ppo else A2cConfig)(hidden=HIDDEN)
    algo, state = made(kind, config, CHOICE)
    sound, _ = one_round(algo, state, random_users(CHOICE, 2, USERS, STEPS, seed=0))
    users = random_users(CHOICE, 2, USERS, STEPS, seed=0)
    if what == "invalid":
        users.valid[0, 1] = False
    else:
        users.rewards[0, 1, 2] = torch.nan
    rows, valid, bypass = algo.local(state, users, STREAMS).take()
    assert valid.tolist() == [[False], [True]]
    for name, x in bypass[POOLED].items():
        assert torch.equal(x[0], state.tensors[name][0]), name
        torch.testing.assert_close(x[1], sound.tensors[name][1], rtol=0, atol=0)
    change = sound.tensors["actor"][1] - state.tensors["actor"][1]
    torch.testing.assert_close(rows["actor"][1, 0], change)


@pytest.mark.parametrize("kind", [Ppo, A2c])
def test_a_replica_is_the_same_alone_and_in_company(kind) -> None:
    config = (PpoConfig if kind is Ppo else A2cConfig)(hidden=HIDDEN)
    algo, state = made(kind, config, BOX)
    state = State(0, {n: x.float() for n, x in state.tensors.items()})
    users = random_users(BOX, 2, USERS, STEPS, seed=0)
    for name in ("obs", "next_obs", "actions", "rewards"):
        setattr(users, name, getattr(users, name).float())
    both, _, _ = algo.local(state, users, STREAMS).take()
    half = State(0, {n: x[1:] for n, x in state.tensors.items()})
    for name, x in vars(users).items():
        if name != "stats":
            setattr(users, name, x[1:])
    alone, _, _ = algo.local(half, users, STREAMS[1:]).take()
    assert torch.equal(both["actor"][1:], alone["actor"])


def test_what_pooled_algorithms_declare() -> None:
    for kind, config in ((Ppo, PpoConfig()), (A2c, A2cConfig())):
        algo, _ = made(kind, config, CHOICE)
        assert not algo.support.private
        assert list(algo.caveats()) == [POOLED]


@pytest.mark.parametrize("kind", [Ppo, A2c])
def test_it_learns_the_chain_that_random_play_cannot(kind) -> None:
    config = own("MyEnv", user="segment")
    rollout, _ = rollout_of(config, [0, 1], 8, 40)
    settings = {"hidden": [16], "gae_lambda": 0.95, "entropy_coef": 0.01}
    rounds = 25 if kind is Ppo else 80
    if kind is Ppo:
        chosen = PpoConfig(lr=0.01, epochs=4, minibatches=4, **settings)
    else:
        chosen = A2cConfig(lr=0.02, **settings)
    algo = kind(chosen, Setup(env_spec(config), 1.0, rounds))
    rollout._policy = algo.policy
    _, curve = learn(algo, rollout, rounds)
    assert curve[0] < 3.0  # uniform play: 17 / 16
    assert curve[-1] > 15.0


def test_ppo_learns_cartpole_far_above_random() -> None:
    config = shipped("cartpole")
    rollout, _ = rollout_of(config, [0, 1], 8, 128)
    settings = {"gae_lambda": 0.95, "entropy_coef": 0.01, "lr": 2.5e-3}
    chosen = PpoConfig(hidden=[32], epochs=4, minibatches=4, **settings)
    algo = Ppo(chosen, Setup(env_spec(config), 1.0, 30))
    rollout._policy = algo.policy
    _, curve = learn(algo, rollout, 30)
    assert curve[0] < 40.0  # random: about 24
    assert sum(curve[-3:]) / 3 > 120.0
