"""DP-LSW: weighted least squares on first-visit returns, noised by smooth sensitivity.

    F_s <- mean over the users who visited s of their discounted return from there on, clipped to public bounds
    theta <- (W^(1/2) Phi)^+ W^(1/2) F + N(0, sigma^2 I),  sigma from the visits (`policy_evaluation.dp_lsw`)

The weights are public; with weights from visit counts, as in the authors' code, the theorem would not hold.
Real observations are mapped to cells of a public grid.

Guarantee:
    (epsilon, delta) as configured, for one user's trajectory, central, replace-one, by smooth sensitivity
    (`privacy/mechanisms/smooth.py`).

Source:
    Balle, Gomrokchi and Precup 2016, with its bound R_max / (1 - gamma) of returns as algo.return_high.
"""

from __future__ import annotations

import torch

from privrl_bench.packs.offline.ope.linear_evaluation import OutputPerturbation
from privrl_bench.packs.offline.ope.policy_evaluation import SmoothSolution, Visits, dp_lsw
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.mechanisms.smooth import smoothness


class DpLsw(OutputPerturbation):
    """DP-LSW."""

    def answer(self, seen: Visits) -> SmoothSolution:
        """See `OutputPerturbation.answer`."""
        beta = smoothness(
            self._context.privacy.epsilon or 0.0, self._context.privacy.delta, self.features.size
        )
        width = self.config.return_high - self.config.return_low
        return dp_lsw(seen, self._phi, self._weights, beta, width)

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: theta; its clip is the smallest smooth bound, with all visits."""
        most = torch.full_like(self._weights, float(self._context.privacy.population))
        least = self.answer(Visits(torch.zeros_like(most), most)).bound
        return (Block("theta", self.features.size, float(least)),)


ALGORITHM = DpLsw
