"""PPO, the non-private reference.

Source: Schulman et al. 2017, with the details of CleanRL's `ppo.py` and `ppo_continuous_action.py`:
generalised advantages, normalised in every minibatch; clipped ratio and clipped value loss; joint
gradient norm 0.5; Adam with eps 1e-5, annealed. One deviation: a time limit bootstraps the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.policy_gradient.pooled import PooledActorCritic
from privrl_bench.algorithms.policy_gradient.user_training import PolicyObjective
from privrl_bench.functional.losses import value_loss
from privrl_bench.functional.optim import Adam, adam_step, limit_norm
from privrl_bench.functional.rng import Streams
from privrl_bench.types import State


class Ppo(PooledActorCritic):
    """PPO; see the module."""

    optimizer_tensors = ("m", "v")

    def update(
        self, state: State, data: dict[str, Tensor], streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Train for E passes of clipped-surrogate minibatches, with moments that persist over rounds.

        See `PooledActorCritic.update`. One replica after the other, so that the result of none depends, to the
        last bit, on the others.
        """
        device = self._context.device
        found = [
            self._train(
                {name: x[r : r + 1].to(device) for name, x in state.tensors.items()},
                {name: x[r : r + 1].to(device) for name, x in data.items()},
                state.round,
                s.torch("user_update", state.round),
            )
            for r, s in enumerate(streams)
        ]
        return {name: torch.cat([one[name] for one in found]).cpu() for name in found[0]}

    def _train(
        self,
        tensors: dict[str, Tensor],
        data: dict[str, Tensor],
        round_index: int,
        draw: torch.Generator,
    ) -> dict[str, Tensor]:
        """The passes of one replica, whose `tensors` and `data` are [1, ...]."""
        config, new = self.config, dict(tensors)
        objective = PolicyObjective(
            self.policy, config.ratio_clip, config.entropy_coef, config.normalize_advantage
        )
        total, lr = data["target"].shape[1], self.learning_rate(round_index)
        minibatches, size = min(config.minibatches, total), max(total // config.minibatches, 1)
        steps = round_index * config.epochs * config.minibatches
        clip = config.ratio_clip if config.clip_value_loss else None
        for _ in range(config.epochs):
            order = torch.randperm(total, generator=draw)[: minibatches * size]
            for rows in order.to(data["target"].device).split(size):
                batch = {name: x[:, rows] for name, x in data.items()}
                leaves = [new[part].detach().requires_grad_() for part in ("actor", "critic")]
                values = self.value_net.forward(leaves[1], batch["obs"])[..., 0]
                loss = objective.loss(leaves[0], batch) + config.value_coef * value_loss(
                    values, batch["target"], batch["value"], clip
                )
                grads = limit_norm(
                    list(torch.autograd.grad(loss.sum(), leaves)), config.max_grad_norm
                )
                for part, grad in zip(("actor", "critic"), grads, strict=True):
                    adam = Adam(new[f"m_{part}"], new[f"v_{part}"], steps)
                    new[part], adam = adam_step(new[part], grad, adam, lr)
                    new |= {f"m_{part}": adam.m, f"v_{part}": adam.v}
                steps += 1
        return new


ALGORITHM = Ppo
