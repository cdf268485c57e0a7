"""PPO, the non-private reference.

Source: Schulman et al. 2017, with the details of CleanRL's `ppo.py` and `ppo_continuous_action.py`:
generalised advantages, normalised in every minibatch; clipped ratio and clipped value loss; joint
gradient norm 0.5; Adam with eps 1e-5, annealed. One deviation: a time limit bootstraps the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algos.pooled import PooledActorCritic
from privrl_bench.maths.losses import policy_loss, value_loss
from privrl_bench.maths.optim import Adam, adam_step, limit_norm
from privrl_bench.maths.returns import normalize
from privrl_bench.streams import Streams
from privrl_bench.types import State


class Ppo(PooledActorCritic):
    """See the module's text."""

    optimizer_tensors = ("m", "v")

    def update(
        self, state: State, data: dict[str, Tensor], streams: list[Streams]
    ) -> dict[str, Tensor]:
        """E passes of clipped-surrogate minibatches with a persistent Adam."""
        config = self.config
        device = self._setup.device
        total = data["target"].shape[1]
        size = max(total // config.minibatches, 1)
        lr = self.learning_rate(state.round)
        done = state.round * config.epochs * config.minibatches
        data = {name: x.to(device) for name, x in data.items()}
        old = {name: x.to(device) for name, x in state.tensors.items()}
        params = {part: old[part] for part in ("actor", "critic")}
        adams = {part: Adam(old[f"m_{part}"], old[f"v_{part}"], done) for part in params}
        draws = [s.torch("local", state.round) for s in streams]
        for _ in range(config.epochs):
            order = torch.stack([torch.randperm(total, generator=g) for g in draws]).to(device)
            for m in range(config.minibatches):
                rows = order[:, m * size : (m + 1) * size]
                batch = {
                    name: torch.take_along_dim(x, rows.view(*rows.shape, *[1] * (x.dim() - 2)), 1)
                    for name, x in data.items()
                }
                params = {part: x.detach().requires_grad_(True) for part, x in params.items()}
                loss = self._loss(params, batch)
                grads = torch.autograd.grad(loss.sum(), list(params.values()))
                with torch.no_grad():
                    limited = limit_norm(list(grads), config.max_grad_norm)
                    for part, grad in zip(params, limited, strict=True):
                        params[part], adams[part] = adam_step(params[part], grad, adams[part], lr)
        new = {part: x.detach() for part, x in params.items()}
        for part, adam in adams.items():
            new |= {f"m_{part}": adam.m, f"v_{part}": adam.v}
        return {name: x.cpu() for name, x in new.items()}

    def _loss(self, params: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        config = self.config
        advantages = batch["advantage"]
        if config.normalize_advantage:
            everywhere = torch.ones_like(advantages, dtype=torch.bool)
            advantages = normalize(advantages, everywhere)
        log_probs, entropy = self.policy.log_prob(params["actor"], batch["obs"], batch["action"])
        values = self.value_net.forward(params["critic"], batch["obs"])[..., 0]
        clip = config.ratio_clip if config.clip_value_loss else None
        return (
            policy_loss(log_probs, batch["old"], advantages, config.ratio_clip)
            + config.value_coef * value_loss(values, batch["target"], batch["value"], clip)
            - config.entropy_coef * entropy.mean(-1)
        )
