"""One replica of an off-policy learner in plain torch, and what tests of both learners share."""

import copy
from dataclasses import replace

import torch
from helpers import BOX, context, module_of, random_users, vector_of

from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.functional.rng import Streams
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

HIDDEN = [7, 6]
SIZE = 5  # of a batch
STREAMS = [Streams(3), Streams(8)]
SETUP = context(BOX, 1.0, 10, 1)
CRITIC = [BOX.obs_dim + BOX.actions, *HIDDEN, 1]


def started(learner, dtype=torch.float64):
    """Tensors of two replicas, far enough from the start to matter."""
    g = torch.Generator().manual_seed(4)
    tensors = learner.init(STREAMS)
    for name in ("actor", "critic"):
        tensors[name] = tensors[name] + 0.3 * torch.randn(tensors[name].shape, generator=g)
    return {name: x.to(dtype) for name, x in tensors.items()}


def a_batch(seed, dtype=torch.float64, replicas=2):
    g = torch.Generator().manual_seed(seed)

    def normal(*more):
        return torch.randn(replicas, SIZE, *more, generator=g, dtype=dtype)

    discount = 0.95 * (torch.rand(replicas, SIZE, generator=g) < 0.7).to(dtype)
    action = torch.tanh(normal(BOX.actions))
    return Batch(normal(BOX.obs_dim), action, normal(), normal(BOX.obs_dim), discount)


def draws(index, streams=STREAMS):
    return [s.torch("user_update", index) for s in streams]


class Part:
    """A network of torch's own modules with its optimiser."""

    def __init__(self, vector, widths, lr):
        self.net = module_of(vector, widths, torch.nn.ReLU)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)

    def __call__(self, *inputs):
        return self.net(torch.cat(inputs, dim=-1))

    def descend(self, loss):
        self.optimizer.zero_grad()
        loss.backward(inputs=list(self.net.parameters()))
        self.optimizer.step()

    def target(self):
        return copy.deepcopy(self.net)

    def vector(self):
        return vector_of(self.net)


def follow(target, net, tau):
    with torch.no_grad():
        for old, new in zip(target.parameters(), net.parameters(), strict=True):
            old.mul_(1 - tau).add_(tau * new)


def assert_neighbours_do_not_matter(learner):
    """Replica 0 beside another and alone, single precision, up to rounding."""
    both = started(learner, torch.float32)
    lone = {name: x[:1] for name, x in both.items()}
    for index in range(3):
        batch = a_batch(index, torch.float32)
        both = learner.step(both, batch, draws(index))
        lone = learner.step(lone, Batch(*(x[:1] for x in batch)), draws(index, STREAMS[:1]))
    for name, x in lone.items():
        torch.testing.assert_close(x, both[name][:1], rtol=1e-4, atol=1e-6)
    # Other neighbours, bit for bit: the shapes are the same.
    other = started(learner, torch.float32)
    for x in other.values():
        x[1] += 1.0
    for index in range(3):
        batch = a_batch(index, torch.float32)
        for x in batch:
            x[1] = 0.5
        other = learner.step(other, batch, draws(index))
    for name, x in both.items():
        assert torch.equal(x[0], other[name][0]), name


def one_step_bandit(learner, policy):
    """Greedy actions [2, 2] after learning that (0.4, -0.3) is the best; every episode is one step."""
    tensors, best = learner.init(STREAMS), torch.tensor([0.4, -0.3])
    for index in range(300):
        g = torch.Generator().manual_seed(index)
        action = 2 * torch.rand(2, 64, 2, generator=g) - 1
        obs = 0.1 * torch.randn(2, 64, 3, generator=g)
        reward = -4 * (action - best).square().sum(-1)
        tensors = learner.step(
            tensors, Batch(obs, action, reward, obs, torch.zeros(2, 64)), draws(index)
        )
    return policy.greedy(tensors["actor"], torch.zeros(2, 1, 3))[:, 0], best


def remembering(kind, config, rounds, room, lengths=None, invalid=()):
    """The memory after rounds of 2 users x 4 steps, and the steps' rewards in the order they came."""
    algo = kind(replace(config, memory=room), SETUP)
    state, came = algo.init(STREAMS), [[], []]
    for index in range(rounds):
        users = random_users(BOX, 2, 2, 4, seed=index, lengths=lengths)
        for u in invalid:
            users.valid[:, u] = False
        for name in ("obs", "next_obs", "rewards", "actions"):
            setattr(users, name, getattr(users, name).float())
        for r in range(2):
            told = users.mask[r] & users.valid[r, :, None]
            came[r] += users.rewards[r][told].tolist()
        rows, valid, bypass = algo.user_update(state, users, STREAMS).take()
        assert valid.all()
        tensors = dict(state.tensors) | bypass[POOLED]
        tensors["actor"] = state.tensors["actor"] + rows["actor"][:, 0]
        state = type(state)(index + 1, tensors)
    return state.tensors, came


def session(algo, *words, seeds=(0,)):
    small = ["algo.hidden=[8]", "algo.batch=8", "env.user_steps=24", "total_steps=240"]
    base = [f"algo={algo}", "env=pendulum", "log=none", "algo.updates=0.5", *small, *words]
    return Trainer(make_plan([compose(later_wins([*base, f"seed={s}"])) for s in seeds]))


def assert_two_seeds_are_two_alone(both, lone, rounds=3):
    """Sessions of the seeds 0 and 1 together and of seed 1 alone, up to rounding."""
    for _ in range(rounds):
        both.step()
        lone.step()
    for name, x in lone.state.tensors.items():
        torch.testing.assert_close(both.state.tensors[name][1:], x, rtol=1e-3, atol=1e-5)
    both.close()
    lone.close()


def assert_cut_in_two_is_whole(algo, *words):
    """A session that goes on from a snapshot ends with the same bits."""
    whole, first, second = (session(algo, *words) for _ in range(3))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        first.step()
    assert second.restore([first.snapshot()])
    for _ in range(2):
        second.step()
    for name, x in whole.state.tensors.items():
        assert torch.equal(x, second.state.tensors[name]), name
    for one in (whole, first, second):
        one.close()
