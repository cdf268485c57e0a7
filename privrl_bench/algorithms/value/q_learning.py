"""What both forms of DQN share: the temporal-difference loss, the optimiser, the target network.

State tensors of R replicas: `actor` [R, P + 1] (Q and epsilon), `target` [R, P], AdamW's `m`, `v`, `peak`
[R, P], and `updates` [R, 1].

Source: Mnih et al. 2015, algorithm 1; the settings are those of the code of Doulazmi and Odonnat.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, require
from privrl_bench.functional.optim import AmsGrad, amsgrad_step
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_network import QPolicy
from privrl_bench.types import EnvSpec


class LocalOptimizerConfig(NamedTuple):
    """How Q follows its gradients: AdamW's step size and weight decay, share of Q in the target at a step."""

    lr: float
    decay: float
    tau: float


def chosen(spec: EnvSpec, name: str) -> EnvSpec:
    """The environment's facts, if actions are choices. Raises ConfigError."""
    if not spec.discrete:
        raise ConfigError(
            "env", f"algo={name} needs a choice of actions, which {spec.name} has not"
        )
    return spec


class QLearner:
    """Q and its target as functions of tensors."""

    def __init__(self, policy: QPolicy, descent: LocalOptimizerConfig):
        self.policy, self._descent = policy, descent

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Before any data; the target is Q."""
        actor = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        target = actor[:, :-1].clone()
        zero = {name: torch.zeros_like(target) for name in ("m", "v", "peak")}
        return {"actor": actor, "target": target, **zero, "updates": torch.zeros(len(actor), 1)}

    def errors(self, tensors: dict[str, Tensor], batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """(layers, slopes) of `Mlp` for the smooth L1 loss of every transition by itself.

        With d = Q(s, a) - (reward + discount max Q'(s')): the loss is d^2 / 2 up to |d| = 1 and |d| - 1/2
        from there, so its derivative by Q(s, a) is d cut at +-1.
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
        """The tensors after one step along the mean gradient of `batch`. Nothing is drawn."""
        layers, slopes = self.errors(tensors, batch)
        return self.descend(
            tensors, self.policy.net.collect(layers, slopes) / batch.reward.shape[1]
        )

    def descend(self, tensors: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
        """One step of AdamW along `gradient` [R, P], then one of the target. Epsilon stays."""
        new, rates = dict(tensors), self._descent
        before = AmsGrad(new["m"], new["v"], new["peak"], new["updates"])
        q, (new["m"], new["v"], new["peak"], new["updates"]) = amsgrad_step(
            new["actor"][:, :-1], gradient, before, rates.lr, rates.decay
        )
        new["actor"] = torch.cat([q, new["actor"][:, -1:]], dim=-1)
        new["target"] = torch.lerp(new["target"], q, rates.tau)
        return new
