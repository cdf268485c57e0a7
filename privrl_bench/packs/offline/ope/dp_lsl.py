"""DP-LSL: ridge regression of first-visit returns weighted by visits, noised by smooth sensitivity.

    G <- diag(weight_s |X_s| / n), F as in `dp_lsw`
    theta <- (Phi^T G Phi + lambda / (2 n) I)^-1 Phi^T G F + N(0, sigma^2 I)

with lambda = |Phi|^2 max weight + ridge n^power, which exceeds the minimum of the theorem.

Guarantee:
    See `dp_lsw`.

Source:
    Balle, Gomrokchi and Precup 2016.
"""

from __future__ import annotations

import torch

from privrl_bench.packs.offline.ope.linear_evaluation import OutputPerturbation
from privrl_bench.packs.offline.ope.ope_settings import DpLslConfig
from privrl_bench.packs.offline.ope.policy_evaluation import (
    SmoothSolution,
    Visits,
    dp_lsl,
    spectral,
)
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.mechanisms.smooth import smoothness


class DpLsl(OutputPerturbation):
    """DP-LSL."""

    config: DpLslConfig

    def answer(self, seen: Visits) -> SmoothSolution:
        """See `OutputPerturbation.answer`."""
        config, users = self.config, self._context.privacy.population
        beta = smoothness(
            self._context.privacy.epsilon or 0.0, self._context.privacy.delta, self.features.size
        )
        offset = spectral(self._phi) ** 2 * float(self._weights.max())
        ridge = offset + config.ridge * users**config.power
        width = config.return_high - config.return_low
        return dp_lsl(seen, self._phi, self._weights, ridge, users, beta, width)

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: theta; its clip is the smallest smooth bound, attained without visits."""
        none = torch.zeros_like(self._weights)
        return (Block("theta", self.features.size, float(self.answer(Visits(none, none)).bound)),)


ALGORITHM = DpLsl
