"""PPO, the non-private reference.

Source: Schulman et al. 2017, with the details of CleanRL's `ppo.py` and `ppo_continuous_action.py`:
generalised advantages, normalised in every minibatch; clipped ratio and clipped value loss; joint
gradient norm 0.5; Adam with eps 1e-5, annealed. One deviation: a time limit bootstraps the value.

In single precision on the CPU (`uses_kernels`) minibatches are trained in compiled code, otherwise by tensor
operations; the two are equal up to rounding (tested).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.base import take_steps
from privrl_bench.algorithms.policy_gradient.pooled import PooledActorCritic
from privrl_bench.algorithms.policy_gradient.user_training import PolicyObjective, compiled
from privrl_bench.functional.losses import value_loss
from privrl_bench.functional.optim import Adam, adam_step, limit_norm
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels.actor_critic_training import train_pooled
from privrl_bench.kernels.machine import uses_kernels
from privrl_bench.models.mlp import Mlp
from privrl_bench.types import State

_PARTS = ("actor", "critic")


class Ppo(PooledActorCritic):
    """PPO; see the module."""

    optimizer_tensors = ("m", "v")

    def update(
        self, state: State, data: dict[str, Tensor], streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Train for E passes of clipped-surrogate minibatches, with moments that persist over rounds.

        See `PooledActorCritic.update`.
        """
        config, total = self.config, data["target"].shape[1]
        minibatches, size = min(config.minibatches, total), max(total // config.minibatches, 1)
        draws = [s.torch("user_update", state.round) for s in streams]
        orders = [
            torch.stack([torch.randperm(total, generator=g) for _ in range(config.epochs)])
            for g in draws
        ]
        order = torch.stack(orders)[..., : minibatches * size].unflatten(-1, (minibatches, size))
        device = self._context.device
        if compiled(self._objective) and uses_kernels(state.tensors["actor"], device):
            return self._sequential(state, data, order)
        return self._batched(state, data, order)

    @property
    def _objective(self) -> PolicyObjective:
        config = self.config
        return PolicyObjective(
            self.policy, config.ratio_clip, config.entropy_coef, config.normalize_advantage
        )

    def _steps(self, state: State) -> int:
        """Steps of Adam before a round."""
        return state.round * self.config.epochs * self.config.minibatches

    def _batched(self, state: State, data: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
        """Train all replicas at once by tensor operations; `order` [R, E, M, B] selects the steps."""
        config, device = self.config, self._context.device
        lr, clip = self.learning_rate(state.round), None
        if config.clip_value_loss:
            clip = config.ratio_clip
        data = {name: x.to(device) for name, x in data.items()}
        new = {name: x.to(device) for name, x in state.tensors.items()}
        indices = order.flatten(1, 2).to(device).unbind(1)
        for steps, rows in enumerate(indices, self._steps(state)):
            batch = {name: take_steps(x, rows) for name, x in data.items()}
            actor, critic = leaves = [new[part].detach().requires_grad_() for part in _PARTS]
            values = self.value_net.forward(critic, batch["obs"])[..., 0]
            errors = value_loss(values, batch["target"], batch["value"], clip)
            loss = self._objective.loss(actor, batch) + config.value_coef * errors
            grads = torch.autograd.grad(loss.sum(), leaves)
            limited = limit_norm(list(grads), config.max_grad_norm)
            for part, grad in zip(_PARTS, limited, strict=True):
                adam = Adam(new[f"m_{part}"], new[f"v_{part}"], steps)
                new[part], adam = adam_step(new[part], grad, adam, lr)
                new |= {f"m_{part}": adam.m, f"v_{part}": adam.v}
        return {name: x.cpu() for name, x in new.items()}

    def _sequential(
        self, state: State, data: dict[str, Tensor], order: Tensor
    ) -> dict[str, Tensor]:
        """Train one replica after the other in compiled code; `order` as in `_batched`.

        A replica's result does not depend, to the last bit, on the other replicas.
        """
        config, old = self.config, state.tensors
        columns = [
            data[name].float() for name in ("obs", "action", "old", "advantage", "value", "target")
        ]
        table = torch.cat([x if x.dim() == 3 else x.unsqueeze(-1) for x in columns], dim=-1)
        trained = [torch.stack([old[k] for k in (p, f"m_{p}", f"v_{p}")]) for p in _PARTS]
        nets = [net for net in (self.policy.net, self.value_net) if isinstance(net, Mlp)]
        clip = config.ratio_clip if config.clip_value_loss else math.inf
        train_pooled(
            *[x.numpy() for x in trained],
            table.numpy(),
            order.numpy(),
            *[np.array([net.inputs, *net.hidden, net.outputs]) for net in nets],
            tuple(self._objective.head() or ()),
            (config.value_coef, clip),
            config.max_grad_norm,
            self._steps(state),
            self.learning_rate(state.round),
        )
        new: dict[str, Tensor] = {}
        for part, (x, m, v) in zip(_PARTS, trained, strict=True):
            new |= {part: x, f"m_{part}": m, f"v_{part}": v}
        return new


ALGORITHM = Ppo
