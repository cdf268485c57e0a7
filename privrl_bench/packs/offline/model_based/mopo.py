"""MOPO: model-based offline reinforcement learning on the pooled data of all users. Not private.

A round draws U trajectories, and every member takes minibatch steps of Adam on their pooled steps; the moments
persist over rounds. 5 % of SAC's minibatches are real steps of the last rounds' users.

With `nll_beta` > 0 the loss of a target is weighted by its predicted variance to the power of beta. The plain
likelihood hardly fits targets whose predicted variance is large.

Source: Yu et al. 2020 (MOPO), the reference in table 1 of the PriMORL paper; Seitzer et al. 2022 (beta-NLL).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, AlgorithmTerms, take_steps
from privrl_bench.algorithms.pooled_algorithm import POOLED, POOLED_CAVEAT
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.model_based.ensemble import likelihood
from privrl_bench.packs.offline.model_based.model_based_settings import MopoConfig
from privrl_bench.packs.offline.model_based.offline_training import ModelBased, with_first
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

_KEPT = 20_000  # real steps that are kept for the policy


class Mopo(ModelBased):
    """MOPO; see the module.

    Further state tensors: Adam's moments, and `kept_*` [R, 20000, ...], real steps.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    config: MopoConfig

    def __init__(self, config: MopoConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self._size = config.members * self.ensemble.net.size

    def blocks(self) -> tuple[Block, ...]:
        """One block, the models."""
        return (Block("model", self._size, self._context.privacy.clip),)

    def terms(self) -> AlgorithmTerms:
        """See `ModelBased.terms`; all data bypass the gate."""
        return replace(super().terms(), caveats=POOLED_CAVEAT)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        state, count, spec = super().init(streams), len(streams), self._context.spec
        zeros = torch.zeros_like(state.tensors["model"])
        widths = {"obs": (spec.obs_dim,), "action": (spec.actions,), "next_obs": (spec.obs_dim,)}
        kept = {f"kept_{k}": torch.zeros(count, _KEPT, *n) for k, n in widths.items()}
        kept["kept_reward"] = torch.zeros(count, _KEPT)
        kept["kept"] = torch.zeros(count, 1)
        more = {"m_model": zeros, "v_model": zeros.clone(), "model_steps": torch.zeros(count, 1)}
        return State(0, state.tensors | kept | more)

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row per replica: the change of its models on the steps of all users."""
        recorded = (users.mask & users.valid[..., None]).flatten(1)
        inputs, targets = (x.flatten(1, 2) for x in self.inputs_of(users))
        size = self.config.model_batch
        pieces = max(recorded.shape[1] // size, 1)
        place = torch.arange(min(pieces * size, recorded.shape[1]))
        tensors, old = state.tensors, state.tensors["model"]
        now, adam = old, Adam(tensors["m_model"], tensors["v_model"], tensors["model_steps"])
        draws = [s.torch("user_update", state.round) for s in streams]
        real = [recorded[r].nonzero().squeeze(-1) for r in range(len(recorded))]
        # Steps repeat where trajectories are shorter than T, so that all replicas have as many minibatches.
        order = torch.stack(
            [
                mine[torch.randperm(len(mine), generator=g)][place % len(mine)]
                for mine, g in zip(real, draws, strict=True)
            ]
        )
        for k in range(pieces):
            rows = order[:, k * size : (k + 1) * size, None]
            x, y = inputs.take_along_dim(rows, 1), targets.take_along_dim(rows, 1)
            leaf = now.detach().requires_grad_()
            mean, log_var = self.ensemble.predict(leaf, x)
            weight = (self.config.nll_beta * log_var.detach()).exp()
            loss = (weight * likelihood(mean, log_var, y.unsqueeze(1))).mean((2, 3)).sum()
            (grad,) = torch.autograd.grad(loss, leaf)
            grad = grad + self.config.model_decay * now
            now, adam = adam_step(now, grad, adam, self.config.model_lr, eps=1e-8)
        beside = {"m_model": adam.m, "v_model": adam.v, "model_steps": torch.as_tensor(adam.step)}
        beside |= self._keep(state.tensors, users, order)
        valid = torch.ones(len(old), 1, dtype=torch.bool)
        rows_ = {"model": (now - old)[:, None]}
        return Contribution(rows_, valid, {POOLED: beside})

    def _keep(
        self, tensors: dict[str, Tensor], users: UserBatch, order: Tensor
    ) -> dict[str, Tensor]:
        """Append the steps of this round to the stored real steps and drop the oldest."""
        action = self._learner.recorded(users.actions)
        named = {
            "obs": users.obs,
            "action": action,
            "next_obs": users.next_obs,
            "reward": users.rewards,
        }
        found = {}
        for name, x in named.items():
            flat = x.flatten(1, 2)
            both = torch.cat([tensors[f"kept_{name}"], take_steps(flat, order)], dim=1)
            found[f"kept_{name}"] = both[:, -_KEPT:].clone()
        found["kept"] = (tensors["kept"] + order.shape[1]).clamp(max=_KEPT)
        return found

    def server(self, state: State, released: Released) -> State:
        """See `ModelBased.server`; tensors that bypass the gate become the state."""
        after = super().server(state, released)
        going = (1.0 - state.tensors["stopped"]).bool()
        beside = {
            name: torch.where(going.view(-1, *[1] * (x.dim() - 1)), x, state.tensors[name])
            for name, x in released.bypass[POOLED].items()
        }
        return State(after.round, after.tensors | beside)

    def real(self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]) -> Batch:
        """Replace the first steps of the minibatch by real ones."""
        count = round(self.config.real_ratio * batch.obs.shape[1])
        back = torch.stack([torch.rand(count, generator=g) for g in draws]) * tensors["kept"]
        rows = _KEPT - 1 - back.long()
        which = torch.arange(len(rows))[:, None]
        names = ("obs", "action", "reward", "next_obs")
        parts = {name: tensors[f"kept_{name}"][which, rows] for name in names}
        one = torch.full((len(rows), count), self.config.gamma)
        return with_first(batch, Batch(**parts, discount=one))


ALGORITHM = Mopo
