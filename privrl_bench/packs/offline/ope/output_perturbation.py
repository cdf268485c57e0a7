"""Policy evaluation by output perturbation: DP-LSW and DP-LSL, noised by smooth sensitivity.

F_s is the mean over the users who visited s of their discounted return from there on, clipped to public bounds.

DP-LSW: weighted least squares on first-visit returns
    theta <- (W^(1/2) Phi)^+ W^(1/2) F + N(0, sigma^2 I),  sigma from the visits (`policy_evaluation.dp_lsw`)

DP-LSL: ridge regression of first-visit returns weighted by visits
    G <- diag(weight_s |X_s| / n)
    theta <- (Phi^T G Phi + lambda / (2 n) I)^-1 Phi^T G F + N(0, sigma^2 I)

with lambda = |Phi|^2 max weight + ridge n^power, which exceeds the minimum of the theorem. The weights are
public; with weights from visit counts, as in the authors' code, the theorems would not hold. Real observations
are mapped to cells of a public grid.

Guarantee:
    (epsilon, delta) as configured, for one user's trajectory, central, replace-one, by smooth sensitivity
    (`privacy/mechanisms/smooth.py`).

Source:
    Balle, Gomrokchi and Precup 2016, with its bound R_max / (1 - gamma) of returns as algo.return_high.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.ope.linear_evaluation import (
    Cells,
    EvaluationAlgorithm,
    cells,
    unpadded,
)
from privrl_bench.packs.offline.ope.ope_settings import DpLslConfig, OutputConfig
from privrl_bench.packs.offline.ope.policy_evaluation import (
    SmoothSolution,
    Visits,
    dp_lsl,
    dp_lsw,
    first_visits,
    spectral,
)
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.mechanisms.smooth import smoothness
from privrl_bench.types import State, UserBatch


class OutputPerturbation(EvaluationAlgorithm):
    """Base of output perturbation: an exact solution from first visits, with its smooth bound."""

    config: OutputConfig

    def __init__(self, config: OutputConfig, context: AlgorithmContext):
        super().__init__(config, context)
        assert context.env is not None
        self._cells: Cells = cells(config.grid, context.env, context.spec)
        self._phi = self.features.phi(self._cells.centres)
        count = len(self._cells.centres)
        if config.weights is not None and len(config.weights) != count:
            raise ConfigError(
                "algo.weights", f"needs {count} numbers, one per state, got {len(config.weights)}"
            )
        self._weights = torch.tensor(config.weights or [1.0] * count, dtype=torch.float64)
        self._width = config.return_high - config.return_low

    @property
    def _beta(self) -> float:
        """Smoothness of the bounds; see `privacy/mechanisms/smooth.py`."""
        privacy = self._context.privacy
        return smoothness(privacy.epsilon or 0.0, privacy.delta, self.features.size)

    def total_visits(self, shards: Iterable[UserBatch], replicas: int) -> Visits:
        """Return sums [R, S] over the users of all shards; users with non-finite data are left out."""
        config, count = self.config, len(self._weights)
        total = torch.zeros(replicas, count, dtype=torch.float64)
        visits = torch.zeros_like(total)
        for shard in shards:
            for r in range(replicas):
                users = unpadded(shard, r)
                at = self._cells.of(users.obs)
                finite = torch.isfinite(users.obs).all(-1) & torch.isfinite(users.rewards)
                usable = (users.valid & (finite | ~users.mask).all(-1))[..., None]
                found, seen = first_visits(
                    at, users.rewards, users.done, users.mask, config.gamma, count
                )
                cut = found.nan_to_num(0.0).clamp(config.return_low, config.return_high)
                total[r] += torch.where(seen & usable, cut, 0.0)[0].sum(0)
                visits[r] += (seen & usable)[0].double().sum(0)
        return Visits(total, visits)

    @abstractmethod
    def answer(self, seen: Visits) -> SmoothSolution:
        """Return theta [..., d] without noise, and its smooth bound."""

    def user_update(
        self, state: State, shards: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """See `Algorithm.user_update`: the exact solution over all users, and its smooth bound."""
        found = self.answer(self.total_visits(shards, len(streams)))
        valid = torch.ones(len(streams), 1, dtype=torch.bool)
        return Contribution({"theta": found.theta[:, None]}, valid, smooth=found.bound)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: the released theta."""
        return State(state.round + 1, {"theta": released.values["theta"]})


class DpLsw(OutputPerturbation):
    """DP-LSW."""

    def answer(self, seen: Visits) -> SmoothSolution:
        """See `OutputPerturbation.answer`."""
        return dp_lsw(seen, self._phi, self._weights, self._beta, self._width)

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: theta; its clip is the smallest smooth bound, with all visits."""
        most = torch.full_like(self._weights, float(self._context.privacy.population))
        least = self.answer(Visits(torch.zeros_like(most), most)).bound
        return (Block("theta", self.features.size, float(least)),)


class DpLsl(OutputPerturbation):
    """DP-LSL."""

    config: DpLslConfig

    def answer(self, seen: Visits) -> SmoothSolution:
        """See `OutputPerturbation.answer`."""
        users = self._context.privacy.population
        offset = spectral(self._phi) ** 2 * float(self._weights.max())
        ridge = offset + self.config.ridge * users**self.config.power
        return dp_lsl(seen, self._phi, self._weights, ridge, users, self._beta, self._width)

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: theta; its clip is the smallest smooth bound, attained without visits."""
        none = torch.zeros_like(self._weights)
        return (Block("theta", self.features.size, float(self.answer(Visits(none, none)).bound)),)
