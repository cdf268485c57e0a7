"""DPPG-KL: log-linear policy gradient clipped for a trust region in the Fisher metric. See `loglinear`.

The Fisher matrix is, as in the authors' code, the second moment of the features of the steps that the policy
takes, plus a ridge. `algo.fisher` says where it comes from:

- `constant`: nobody's data: |phi|^2 <= b bounds its largest eigenvalue and its trace (default).
- `public`: episodes of the released policy in a simulator, before every round; they are nobody's.
- `private`: a second block of the release; the mean over all rounds so far, noise included.

Source: "Differentially Private Policy Gradient" (Rio, Barlier, Colin), proposition 4.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.loglinear.local_gradient import LogLinear, LogLinearConfig
from privrl_bench.errors import require, require_choice
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.trust_region import kl_clip
from privrl_bench.privacy.contribution import Block, Released
from privrl_bench.types import State, UserBatch


@dataclass
class DppgKlConfig(LogLinearConfig):
    """Settings of DPPG-KL."""

    name: str = "dppg_kl"
    fisher: str = "constant"  # constant | public: simulated episodes | private: released
    fisher_episodes: int = 25  # public: simulated before every round
    fisher_ridge: float = 1e-3  # added to the diagonal
    fisher_noise_ratio: float = 3.0  # private: its noise multiplier / the gradient's

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algo.fisher", self.fisher, ("constant", "public", "private"))
        ok = self.fisher_episodes >= 1
        require("algo.fisher_episodes", ok, "a whole number >= 1", self.fisher_episodes)
        require("algo.fisher_ridge", self.fisher_ridge > 0, "> 0", self.fisher_ridge)
        ok = self.fisher_noise_ratio > 0
        require("algo.fisher_noise_ratio", ok, "> 0", self.fisher_noise_ratio)


class DppgKl(LogLinear):
    """See the module's text. State tensor `fisher` [R, d, d], ridge apart, unless it is constant."""

    config: DppgKlConfig

    def __init__(self, config: DppgKlConfig, setup: AlgorithmContext):
        super().__init__(config, setup)
        self._episodes: Callable[[Tensor, int], UserBatch] | None = None
        size = self.policy.size
        self._upper = torch.triu_indices(size, size)

    def blocks(self) -> tuple[Block, ...]:
        """The gradient, and the upper triangle of a private Fisher matrix."""
        blocks = super().blocks()
        if self.config.fisher != "private":
            return blocks
        # The triangle of phi phi' is no longer than the whole, which is |phi|^2 long.
        clip, ratio = self.policy.bound, self.config.fisher_noise_ratio
        return (*blocks, Block("fisher", self._upper.shape[1], clip, ratio))

    def notes(self) -> dict[str, str]:
        """The simulator, if there is one."""
        if self.config.fisher != "public":
            return {}
        why = "the Fisher matrix comes from simulated episodes that are nobody's"
        return {"public simulator": why}

    def radius(self, state: State) -> Tensor:
        """Proposition 4.7."""
        config, ridge = self.config, self.config.fisher_ridge
        size, bound = self.policy.size, self.policy.bound
        largest = torch.full_like(self._z, bound)
        trace = largest.clone()
        if config.fisher != "constant":
            fisher = state.tensors["fisher"].double()
            # Noise may have made it anything; what is known of it for sure holds anyway.
            largest = torch.linalg.eigvalsh(fisher)[:, -1].clamp(0.0, bound)
            if config.fisher == "public":
                trace = fisher.diagonal(dim1=-2, dim2=-1).sum(-1)
        eta = self.learning_rate(state.round)
        clip = kl_clip(
            eta,
            self._z.numpy(),
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
            # Before anything is released: the most it can be, so that the first clip is safe.
            eye = torch.eye(self.policy.size).expand(len(streams), -1, -1)
            state.tensors["fisher"] = self.policy.bound * eye.clone()
        return self.after_release(state, streams)

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """A fresh matrix from simulated episodes of the policy, if it is public."""
        if self.config.fisher != "public":
            return state
        if self._episodes is None:
            assert self._setup.sources.simulate is not None
            self._episodes = self._setup.sources.simulate(self.policy, self.config.fisher_episodes)
        users = self._episodes(state.tensors["actor"], state.round)
        every = self.policy.features(users.obs)
        index = users.actions.long()[..., None, None].expand(
            *users.actions.shape, 1, every.shape[-1]
        )
        feature = every.gather(-2, index).squeeze(-2) * users.mask[..., None]
        count = users.mask.sum((1, 2)).clamp_min(1)[:, None, None]
        fisher = torch.einsum("rutd,rute->rde", feature, feature) / count
        return State(state.round, {**state.tensors, "fisher": fisher})

    def further_rows(self, feature: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """The user's own second moments, if they are released."""
        if self.config.fisher != "private":
            return {}
        moments = torch.einsum("rut,rutd,rute->rude", weight, feature, feature)
        return {"fisher": moments[..., self._upper[0], self._upper[1]]}

    def server(self, state: State, released: Released) -> State:
        """One gradient step; a released matrix joins the mean of those before."""
        after = super().server(state, released)
        if self.config.fisher == "private":
            known = state.tensors["fisher"]
            triangle = torch.zeros_like(known)
            triangle[:, self._upper[0], self._upper[1]] = released.values["fisher"]
            whole = triangle + triangle.mT - torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1))
            share = 1.0 / (state.round + 1)
            after.tensors["fisher"] = known + share * (whole - known)
        return after


ALGORITHM, CONFIG = DppgKl, DppgKlConfig
