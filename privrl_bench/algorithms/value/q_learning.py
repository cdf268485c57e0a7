"""Shared parts of the two DQN algorithms: temporal-difference loss, optimiser and target network.

State tensors of R replicas: `actor` [R, P + 1] (Q and epsilon), `target` [R, P], AdamW's `m`, `v`, `peak`
[R, P], and `updates` [R, 1].

Source: Mnih et al. 2015, algorithm 1; the settings are those of the code of Doulazmi and Odonnat.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.value.actor_critic import Batch, Rates
from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_network import QPolicy


class QLearner:
    """Q and its target network as functions of state tensors.

    Args:
        policy: the policy with the network of Q.
        rates: step sizes.
    """

    def __init__(self, policy: QPolicy, rates: Rates):
        self.policy, self._rates = policy, rates

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Initial state tensors; the target is Q."""
        actor = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        target = actor[:, :-1].clone()
        zero = {name: torch.zeros_like(target) for name in ("m", "v", "peak")}
        return {"actor": actor, "target": target, **zero, "updates": torch.zeros(len(actor), 1)}

    def errors(self, tensors: dict[str, Tensor], batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Forward and backward pass of the smooth L1 loss of each transition.

        With d = Q(s, a) - (reward + discount max Q'(s')), the loss is d^2 / 2 up to |d| = 1 and |d| - 1/2
        beyond, so its derivative by Q(s, a) is d clamped to [-1, 1].

        Args:
            tensors: state tensors.
            batch: transitions [R, B, ...].

        Returns:
            (layers, slopes) as of `Mlp.layers` and `Mlp.slopes`.
        """
        net = self.policy.net
        after = net.forward(tensors["target"], batch.next_obs).amax(-1)
        unpacked = net.unpack(tensors["actor"][:, :-1])
        layers = net.layers(unpacked, batch.obs)
        action = batch.action.long().unsqueeze(-1)
        found = layers[-1].gather(-1, action).squeeze(-1)
        error = found - (batch.reward + batch.discount * after)
        grad = torch.zeros_like(layers[-1]).scatter_(-1, action, error.clamp(-1, 1).unsqueeze(-1))
        return layers, net.slopes(unpacked, layers, grad)

    def step(
        self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """One step along the mean gradient of a batch; it uses no randomness.

        Args:
            tensors: state tensors.
            batch: transitions [R, B, ...].
            draws: unused.

        Returns:
            The new state tensors.
        """
        layers, slopes = self.errors(tensors, batch)
        return self.descend(
            tensors, self.policy.net.collect(layers, slopes) / batch.reward.shape[1]
        )

    def descend(self, tensors: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
        """One step of AdamW, then the update of the target network; epsilon is unchanged.

        Args:
            tensors: state tensors.
            gradient: [R, P].

        Returns:
            The new state tensors.
        """
        new, rates = dict(tensors), self._rates
        before = Adam(new["m"], new["v"], new["updates"], new["peak"])
        q, after = adam_step(
            new["actor"][:, :-1], gradient, before, rates.lr, eps=1e-8, decay=rates.decay
        )
        assert after.peak is not None
        new |= {"m": after.m, "v": after.v, "peak": after.peak}
        new["updates"] = torch.as_tensor(after.step)
        new["actor"] = torch.cat([q, new["actor"][:, -1:]], dim=-1)
        new["target"] = torch.lerp(new["target"], q, rates.tau)
        return new
