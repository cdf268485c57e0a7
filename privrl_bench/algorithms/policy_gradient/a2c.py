"""A2C, synchronous advantage actor-critic. Not private.

Source: Mnih et al. 2016, synchronous form: one RMSprop step on each round's pooled data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.policy_gradient.pooled import PooledActorCritic
from privrl_bench.functional.discounted_returns import normalize
from privrl_bench.functional.losses import value_loss
from privrl_bench.functional.optim import limit_norm, rmsprop_step
from privrl_bench.functional.rng import Streams
from privrl_bench.types import State


class A2c(PooledActorCritic):
    """A2C; see the module."""

    optimizer_tensors = ("square",)

    def update(
        self, state: State, data: dict[str, Tensor], streams: list[Streams]
    ) -> dict[str, Tensor]:
        """One policy-gradient step on the data of the round; see `PooledActorCritic.update`."""
        config = self.config
        advantages = data["advantage"]
        if config.normalize_advantage:
            advantages = normalize(advantages, torch.ones_like(advantages, dtype=torch.bool))
        params = {
            part: state.tensors[part].detach().requires_grad_(True) for part in ("actor", "critic")
        }
        log_probs, entropy = self.policy.log_prob(params["actor"], data["obs"], data["action"])
        values = self.value_net.forward(params["critic"], data["obs"])[..., 0]
        loss = (
            -(log_probs * advantages).mean(-1)
            + config.value_coef * 2.0 * value_loss(values, data["target"])
            - config.entropy_coef * entropy.mean(-1)
        )
        grads = torch.autograd.grad(loss.sum(), list(params.values()))
        lr = self.learning_rate(state.round)
        new: dict[str, Tensor] = {}
        with torch.no_grad():
            limited = limit_norm(list(grads), config.max_grad_norm)
            for part, grad in zip(params, limited, strict=True):
                new[part], new[f"square_{part}"] = rmsprop_step(
                    params[part].detach(), grad, state.tensors[f"square_{part}"], lr
                )
        return new


ALGORITHM = A2c
