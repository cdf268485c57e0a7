"""Shared parts of the two DQN algorithms: temporal-difference loss, optimiser and target network.

State tensors of R replicas: `actor` [R, P + 1] (Q and epsilon), `target` [R, P], AdamW's `m`, `v`, `peak`
[R, P], and `updates` [R, 1].

Source: Mnih et al. 2015, algorithm 1; the settings are those of the code of Doulazmi and Odonnat.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

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

    def losses(self, q: Tensor, target: Tensor, batch: Batch) -> Tensor:
        """The smooth L1 loss [N, B] of each transition, differentiable in Q.

        With d = Q(s, a) - (reward + discount max Q'(s')), it is d^2 / 2 up to |d| = 1 and |d| - 1/2 beyond.

        Args:
            q: [N, P] parameters of Q.
            target: [N, P] parameters of the target network Q'.
            batch: transitions [N, B, ...].
        """
        net, action = self.policy.net, batch.action.long().unsqueeze(-1)
        with torch.no_grad():
            goal = batch.reward + batch.discount * net.forward(target, batch.next_obs).amax(-1)
        found = net.forward(q, batch.obs).gather(-1, action).squeeze(-1)
        return smooth_l1_loss(found, goal, reduction="none")

    def step(
        self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """See `actor_critic.DdpgLearner.step`: along the mean gradient of the batch; it uses no randomness."""
        q = tensors["actor"][:, :-1].detach().requires_grad_()
        loss = self.losses(q, tensors["target"], batch).mean(-1).sum()
        return self.descend(tensors, torch.autograd.grad(loss, q)[0])

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
