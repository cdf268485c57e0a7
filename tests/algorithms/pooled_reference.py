"""One replica of a pooled actor-critic in plain torch, in the manner of CleanRL."""

import torch
from helpers import TorchPolicy, context, in_double, module_of, slow_gae, vector_of

from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.functional.rng import Streams
from privrl_bench.types import State

HIDDEN = [6, 5]
STREAMS = [Streams(3), Streams(8)]
ROUNDS = 10
USERS, STEPS = 3, 8


def made(kind, config, spec):
    algo = kind(config, context(spec, 1.0, ROUNDS, 1))
    state = algo.init(STREAMS)
    g = torch.Generator().manual_seed(4)
    for part in ("actor", "critic"):
        x = state.tensors[part]
        state.tensors[part] = x + 0.4 * torch.randn(x.shape, generator=g)
    return algo, in_double(state)


def one_round(algo, state, users):
    """(next state, valid) without a gate."""
    rows, valid, bypass = algo.user_update(state, users, STREAMS).take()
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
                    users.done[r, u],
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
