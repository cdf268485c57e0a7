"""DPPG-KL: log-linear policy gradient clipped for a trust region in the Fisher metric.

See `trajectory_gradient` for the algorithm. The Fisher matrix is the second moment of the
features along the policy's steps, plus a ridge. `algo.fisher` selects its source:

- `constant`: no data: |phi|^2 <= b bounds its largest eigenvalue and its trace (default).
- `public`: simulated episodes of the released policy before every round.
- `private`: a second block of the release; the mean over all rounds so far, with noise.

Source:
    "Differentially Private Policy Gradient" (Rio, Barlier, Colin), proposition 4.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, AlgorithmTerms
from privrl_bench.algorithms.loglinear.loglinear_settings import DppgKlConfig
from privrl_bench.algorithms.loglinear.trajectory_gradient import LogLinear
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.trust_region import kl_clip
from privrl_bench.privacy.contribution import Block, Released
from privrl_bench.types import State, UserBatch


class DppgKl(LogLinear):
    """DPPG-KL. State tensor `fisher` [R, d, d], without the ridge, unless `algo.fisher=constant`."""

    config: DppgKlConfig

    def __init__(self, config: DppgKlConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self._episodes: Callable[[Tensor, int], UserBatch] | None = None
        size = self.policy.size
        self._upper = torch.triu_indices(size, size)

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: the gradient, and the upper triangle of a private Fisher matrix."""
        blocks = super().blocks()
        if self.config.fisher != "private":
            return blocks
        # The norm of the triangle of phi phi' is at most that of the matrix, |phi|^2.
        clip, ratio = self.policy.bound, self.config.fisher_noise_ratio
        return (*blocks, Block("fisher", self._upper.shape[1], clip, ratio))

    def terms(self) -> AlgorithmTerms:
        """See `LogLinear.terms`; with a public Fisher matrix also its simulator."""
        if self.config.fisher != "public":
            return super().terms()
        notes = {"public simulator": "the Fisher matrix comes from simulated episodes"}
        return replace(super().terms(), notes=notes)

    def radius(self, state: State) -> Tensor:
        """See `LogLinear.radius`: proposition 4.7."""
        config, ridge = self.config, self.config.fisher_ridge
        size, bound = self.policy.size, self.policy.bound
        largest = torch.full_like(self.z, bound)
        trace = largest.clone()
        if config.fisher != "constant":
            fisher = state.tensors["fisher"].double()
            # With noise it may be any matrix; clamp to the bounds that always hold.
            largest = torch.linalg.eigvalsh(fisher)[:, -1].clamp(0.0, bound)
            if config.fisher == "public":
                trace = fisher.diagonal(dim1=-2, dim2=-1).sum(-1)
        eta = self.learning_rate(state.round)
        clip = kl_clip(
            eta,
            self.z.numpy(),
            config.alpha,
            1 - config.confidence,
            (largest + ridge).numpy(),
            (trace + ridge * size).numpy(),
        )
        return torch.as_tensor(clip)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        state = super().init(streams)
        if self.config.fisher == "private":
            # Before the first release: an upper bound, so that the first clip is valid.
            eye = torch.eye(self.policy.size).expand(len(streams), -1, -1)
            state.tensors["fisher"] = self.policy.bound * eye.clone()
        return self.after_release(state, streams)

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """See `Algorithm.after_release`: a new public Fisher matrix from simulated episodes."""
        if self.config.fisher != "public":
            return state
        if self._episodes is None:
            assert self._context.sources.simulate is not None
            self._episodes = self._context.sources.simulate(
                self.policy, self.config.fisher_episodes
            )
        users = self._episodes(state.tensors["actor"], state.round)
        feature = self.features_of(users)[1] * users.mask[..., None]
        count = users.mask.sum((1, 2)).clamp_min(1)[:, None, None]
        fisher = torch.einsum("rutd,rute->rde", feature, feature) / count
        return State(state.round, {**state.tensors, "fisher": fisher})

    def further_rows(self, feature: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """See `LogLinear.further_rows`: second moments of each user, if they are released."""
        if self.config.fisher != "private":
            return {}
        moments = torch.einsum("rut,rutd,rute->rude", weight, feature, feature)
        return {"fisher": moments[..., self._upper[0], self._upper[1]]}

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: a gradient step, and the running mean of released matrices."""
        after = super().server(state, released)
        if self.config.fisher == "private":
            known = state.tensors["fisher"]
            triangle = torch.zeros_like(known)
            triangle[:, self._upper[0], self._upper[1]] = released.values["fisher"]
            whole = triangle + triangle.mT - torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1))
            share = 1.0 / (state.round + 1)
            after.tensors["fisher"] = known + share * (whole - known)
        return after


ALGORITHM = DppgKl
