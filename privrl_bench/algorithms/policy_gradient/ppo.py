"""PPO, the non-private reference.

Source: Schulman et al. 2017, with the details of CleanRL's `ppo.py` and `ppo_continuous_action.py`:
generalised advantages, normalised in every minibatch; clipped ratio and clipped value loss; joint
gradient norm 0.5; Adam with eps 1e-5, annealed. One deviation: a time limit bootstraps the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import take_steps
from privrl_bench.algorithms.policy_gradient.pooled import PooledActorCritic
from privrl_bench.functional.discounted_returns import normalize
from privrl_bench.functional.losses import value_slope
from privrl_bench.functional.optim import Adam, adam_step, limit_norm
from privrl_bench.functional.rng import Streams
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
        device = self._context.device
        total = data["target"].shape[1]
        size = max(total // config.minibatches, 1)
        lr = self.learning_rate(state.round)
        steps = state.round * config.epochs * config.minibatches
        data = {name: x.to(device) for name, x in data.items()}
        old = {name: x.to(device) for name, x in state.tensors.items()}
        params = {part: old[part] for part in ("actor", "critic")}
        adams = {part: Adam(old[f"m_{part}"], old[f"v_{part}"], steps) for part in params}
        draws = [s.torch("local", state.round) for s in streams]
        with torch.inference_mode():
            for _ in range(config.epochs):
                order = torch.stack([torch.randperm(total, generator=g) for g in draws]).to(device)
                for m in range(min(config.minibatches, total)):
                    rows = order[:, m * size : (m + 1) * size]
                    batch = {name: take_steps(x, rows) for name, x in data.items()}
                    grads = limit_norm(self._gradients(params, batch), config.max_grad_norm)
                    for part, grad in zip(params, grads, strict=True):
                        params[part], adams[part] = adam_step(params[part], grad, adams[part], lr)
        new = dict(params)
        for part, adam in adams.items():
            new |= {f"m_{part}": adam.m, f"v_{part}": adam.v}
        return {name: x.cpu().clone() for name, x in new.items()}

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
