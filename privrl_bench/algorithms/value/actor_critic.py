"""Off-policy learners of R replicas, SAC and DDPG: single gradient steps on given batches.

The state of a learner is a dictionary of tensors [R, ...]; a step is a function from tensors and a batch to
tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.models.bounded import DeterministicPolicy, SquashedPolicy
from privrl_bench.models.mlp import Mlp


class Batch(NamedTuple):
    """Transitions of R replicas.

    Attributes:
        obs: [R, B, D].
        action: [R, B, A] in [-1, 1], or [R, B] choices.
        reward: [R, B].
        next_obs: [R, B, D].
        discount: [R, B] weight of the value of `next_obs`: gamma^n if it is n steps later, 0 after a
            termination.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor


class Rates(NamedTuple):
    """Step sizes of a learner.

    Attributes:
        lr: step size of the optimiser.
        tau: weight of the new critic in the update of the target.
        decay: penalty of the critic: L2 of DDPG, weight decay of AdamW.
    """

    lr: float
    tau: float
    decay: float = 0.0


def _begin(tensors: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    """The tensors with moments of zero for `names`, and no steps."""
    moments = {f"{k}_{n}": torch.zeros_like(tensors[n]) for n in names for k in ("m", "v")}
    return {**tensors, **moments, "steps": torch.zeros(len(tensors[names[0]]), 1)}


def _descend(tensors: dict[str, Tensor], name: str, loss: Tensor, leaf: Tensor, lr: float) -> None:
    """One step of Adam on `name`, in the dictionary. `steps` counts the steps before this one."""
    (grad,) = torch.autograd.grad(loss, leaf)
    before = Adam(tensors[f"m_{name}"], tensors[f"v_{name}"], tensors["steps"])
    tensors[name], after = adam_step(leaf.detach(), grad, before, lr, eps=1e-8)
    tensors[f"m_{name}"], tensors[f"v_{name}"] = after.m, after.v


class SacLearner:
    """Soft actor-critic with two critics and a learned temperature.

    Args:
        policy: the actor.
        critic: network of (observation, action) with one output.
        rates: step sizes.
        target_entropy: target of the policy's entropy, in nats.
        temperature: initial temperature.

    Source: Haarnoja et al. 2018 (arXiv 1812.05905), algorithm 1.
    """

    def __init__(
        self,
        policy: SquashedPolicy,
        critic: Mlp,
        rates: Rates,
        target_entropy: float,
        temperature: float = 1.0,
    ):
        self.policy, self._critic, self._rates = policy, critic, rates
        self._target_entropy, self._temperature = target_entropy, temperature

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Initial state tensors."""

        def pair(s: Streams) -> Tensor:
            return torch.cat([self._critic.init(s.torch("init", k), 1.0) for k in (1, 2)])

        critics = torch.stack([pair(s) for s in streams])
        tensors = {
            "actor": torch.stack([self.policy.init(s.torch("init", 0)) for s in streams]),
            "critic": critics,
            "target": critics.clone(),
            "log_alpha": torch.full((len(streams), 1), math.log(self._temperature)),
        }
        return _begin(tensors, "actor", "critic", "log_alpha")

    def _values(self, critics: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """[R, 2, B] values of both critics [R, 2 P]."""
        x = torch.cat([obs, action], dim=-1).repeat_interleave(2, dim=0)
        found = self._critic.forward(critics.reshape(2 * len(critics), -1), x)
        return found.reshape(len(critics), 2, -1)

    def step(
        self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """One gradient step of critics, actor and temperature.

        Args:
            tensors: state tensors.
            batch: transitions [R, B, ...].
            draws: random stream of each replica.

        Returns:
            The new state tensors.
        """
        new, rates = dict(tensors), self._rates
        size = batch.obs.shape[1]
        noise = torch.stack([self.policy.draw(g, 2, size) for g in draws], dim=1)
        alpha = new["log_alpha"].exp()
        with torch.no_grad():
            action, log_prob = self.policy.sample(new["actor"], batch.next_obs, noise[0])
            after = self._values(new["target"], batch.next_obs, action).amin(1) - alpha * log_prob
            goal = batch.reward + batch.discount * after
        leaf = new["critic"].detach().requires_grad_()
        error = self._values(leaf, batch.obs, batch.action) - goal.unsqueeze(1)
        _descend(new, "critic", 0.5 * (error * error).mean(-1).sum(), leaf, rates.lr)

        leaf = new["actor"].detach().requires_grad_()
        action, log_prob = self.policy.sample(leaf, batch.obs, noise[1])
        worth = self._values(new["critic"], batch.obs, action).amin(1)
        loss = (alpha * log_prob - worth).mean(-1).sum()
        _descend(new, "actor", loss, leaf, rates.lr)

        leaf = new["log_alpha"].detach().requires_grad_()
        missing = (log_prob.detach() + self._target_entropy).mean(-1, keepdim=True)
        _descend(new, "log_alpha", -(leaf * missing).sum(), leaf, rates.lr)
        return _finish(new, {"target": "critic"}, rates.tau)


class DdpgLearner:
    """Deep deterministic policy gradient: one critic, and targets of actor and critic.

    Args:
        policy: the actor.
        critic: network of (observation, action) with one output.
        rates: step sizes.

    Source: Lillicrap et al. 2016, algorithm 1.
    """

    def __init__(self, policy: DeterministicPolicy, critic: Mlp, rates: Rates):
        self.policy, self._critic, self._rates = policy, critic, rates

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Initial state tensors."""
        tensors = {
            "actor": torch.stack([self.policy.init(s.torch("init", 0)) for s in streams]),
            "critic": torch.stack([self._critic.init(s.torch("init", 1), 1.0) for s in streams]),
        }
        tensors |= {f"target_{name}": x.clone() for name, x in tensors.items()}
        return _begin(tensors, "actor", "critic")

    def _value(self, critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        return self._critic.forward(critic, torch.cat([obs, action], dim=-1)).squeeze(-1)

    def step(
        self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """One gradient step of critic and actor; it uses no randomness.

        Args:
            tensors: state tensors.
            batch: transitions [R, B, ...].
            draws: unused.

        Returns:
            The new state tensors.
        """
        new, rates = dict(tensors), self._rates
        with torch.no_grad():
            action = self.policy.greedy(new["target_actor"], batch.next_obs)
            after = self._value(new["target_critic"], batch.next_obs, action)
            goal = batch.reward + batch.discount * after
        leaf = new["critic"].detach().requires_grad_()
        error = self._value(leaf, batch.obs, batch.action) - goal
        penalty = 0.5 * rates.decay * (leaf * leaf).sum()
        _descend(new, "critic", (error * error).mean(-1).sum() + penalty, leaf, rates.lr)

        leaf = new["actor"].detach().requires_grad_()
        action = self.policy.greedy(leaf, batch.obs)
        worth = self._value(new["critic"], batch.obs, action)
        _descend(new, "actor", -worth.mean(-1).sum(), leaf, rates.lr)
        return _finish(new, {"target_actor": "actor", "target_critic": "critic"}, rates.tau)


def _finish(new: dict[str, Tensor], targets: dict[str, str], tau: float) -> dict[str, Tensor]:
    """Update the target networks and count the step."""
    for target, name in targets.items():
        new[target] = torch.lerp(new[target], new[name], tau)
    new["steps"] = new["steps"] + 1.0
    return new
