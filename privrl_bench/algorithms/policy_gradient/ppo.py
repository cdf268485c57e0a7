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
from privrl_bench.functional.discounted_returns import normalize
from privrl_bench.functional.losses import value_slope
from privrl_bench.functional.optim import Adam, adam_step, limit_norm
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels.actor_critic_training import train_pooled
from privrl_bench.kernels.machine import uses_kernels
from privrl_bench.kernels.policy_heads import Head
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import Surrogate
from privrl_bench.types import State


class Ppo(PooledActorCritic):
    """PPO; see the module."""

    optimizer_tensors = ("m", "v")

    def update(
        self, state: State, data: dict[str, Tensor], streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Train for E passes of clipped-surrogate minibatches, with moments that persist over rounds.

        See `PooledActorCritic.update`.
        """
        config = self.config
        params = {part: state.tensors[part] for part in ("actor", "critic")}
        adams = {
            part: Adam(
                state.tensors[f"m_{part}"],
                state.tensors[f"v_{part}"],
                state.round * config.epochs * config.minibatches,
            )
            for part in params
        }
        total = data["target"].shape[1]
        minibatches, size = min(config.minibatches, total), max(total // config.minibatches, 1)
        draws = [s.torch("user_update", state.round) for s in streams]
        order = torch.stack(
            [
                torch.stack([torch.randperm(total, generator=g) for _ in range(config.epochs)])
                for g in draws
            ]
        )[..., : minibatches * size].unflatten(-1, (minibatches, size))
        lr = self.learning_rate(state.round)
        compiled = self.policy.kernel_head is not None and isinstance(self.value_net, Mlp)
        if compiled and uses_kernels(params["actor"], self._context.device):
            return self._sequential(params, adams, data, order, lr)
        return self._batched(params, adams, data, order, lr)

    def _batched(
        self,
        params: dict[str, Tensor],
        adams: dict[str, Adam],
        data: dict[str, Tensor],
        order: Tensor,
        lr: float,
    ) -> dict[str, Tensor]:
        """Train all replicas at once by tensor operations; `order` [R, E, M, B] selects the steps."""
        device = self._context.device
        data = {name: x.to(device) for name, x in data.items()}
        params = {part: x.to(device) for part, x in params.items()}
        adams = {part: Adam(x.m.to(device), x.v.to(device), x.step) for part, x in adams.items()}
        with torch.inference_mode():
            for rows in order.flatten(1, 2).to(device).unbind(1):
                batch = {name: take_steps(x, rows) for name, x in data.items()}
                grads = limit_norm(self._gradients(params, batch), self.config.max_grad_norm)
                for part, grad in zip(params, grads, strict=True):
                    params[part], adams[part] = adam_step(params[part], grad, adams[part], lr)
        new = dict(params)
        for part, adam in adams.items():
            new |= {f"m_{part}": adam.m, f"v_{part}": adam.v}
        return {name: x.cpu().clone() for name, x in new.items()}

    def _sequential(
        self,
        params: dict[str, Tensor],
        adams: dict[str, Adam],
        data: dict[str, Tensor],
        order: Tensor,
        lr: float,
    ) -> dict[str, Tensor]:
        """Train one replica after the other in compiled code; arguments as in `_batched`."""
        config = self.config
        actor, critic, kind = self.policy.net, self.value_net, self.policy.kernel_head
        assert isinstance(actor, Mlp)
        assert isinstance(critic, Mlp)
        assert kind is not None
        names = ("obs", "action", "old", "advantage", "value", "target")
        columns = [data[name].float() for name in names]
        table = torch.cat([x if x.dim() == 3 else x.unsqueeze(-1) for x in columns], dim=-1)
        trained = {
            part: torch.stack([x, adams[part].m, adams[part].v]) for part, x in params.items()
        }
        widths = [np.array([n.inputs, *n.hidden, n.outputs]) for n in (actor, critic)]
        head = Head(kind, config.ratio_clip, config.entropy_coef, config.normalize_advantage)
        clip = config.ratio_clip if config.clip_value_loss else math.inf
        train_pooled(
            *[x.numpy() for x in trained.values()],
            table.numpy(),
            order.numpy(),
            *widths,
            tuple(head),
            (config.value_coef, clip),
            config.max_grad_norm,
            int(adams["actor"].step),
            lr,
        )
        new: dict[str, Tensor] = {}
        for part, (x, m, v) in trained.items():
            new |= {part: x, f"m_{part}": m, f"v_{part}": v}
        return new

    def _gradients(self, params: dict[str, Tensor], batch: dict[str, Tensor]) -> list[Tensor]:
        """Gradients of the policy loss minus the entropy bonus, and of the weighted value loss."""
        config = self.config
        advantages = batch["advantage"]
        if config.normalize_advantage:
            advantages = normalize(advantages, torch.ones_like(advantages, dtype=torch.bool))
        minibatch = Surrogate(batch["obs"], batch["action"], batch["old"], advantages)
        actor = self.policy.surrogate_gradient(
            params["actor"], minibatch, config.ratio_clip, config.entropy_coef
        )
        unpacked = self.value_net.unpack(params["critic"])
        layers = self.value_net.layers(unpacked, batch["obs"])
        clip = config.ratio_clip if config.clip_value_loss else None
        slope = value_slope(layers[-1][..., 0], batch["target"], batch["value"], clip)
        critic = self.value_net.gradient(unpacked, layers, config.value_coef * slope.unsqueeze(-1))
        return [actor, critic]


ALGORITHM = Ppo
