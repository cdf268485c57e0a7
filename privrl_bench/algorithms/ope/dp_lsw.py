"""DP-LSW: weighted least squares on first-visit returns, with the noise of its smooth sensitivity.

    F_s <- mean over the people who visited s of her discounted return from then on, cut at public bounds
    theta <- (W^(1/2) Phi)^+ W^(1/2) F + N(0, sigma^2 I),  sigma from the visits (`maths.evaluation.dp_lsw`)

Guarantee: (epsilon, delta) as configured, for one person's trajectory, central, replace-one, by
smooth sensitivity (`privacy/mechanisms/smooth.py`). The weights are public; with weights from visit counts, as the
authors' program has them, the theorem would not hold. Real observations are put into cells of a public grid.

Source: Balle, Gomrokchi and Precup 2016, with its bound R_max / (1 - gamma) on returns as algo.return_high.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privrl_bench.algorithms.ope.linear_evaluation import OutputConfig, OutputPerturbation
from privrl_bench.functional.policy_evaluation import Smooth, Visits, dp_lsw
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.mechanisms.smooth import smoothness


@dataclass
class DpLswConfig(OutputConfig):
    """Settings of DP-LSW."""

    name: str = "dp_lsw"


class DpLsw(OutputPerturbation):
    """See the module's text."""

    def answer(self, seen: Visits) -> Smooth:
        """theta [..., d] without noise, and its smooth bound."""
        beta = smoothness(self._setup.epsilon or 0.0, self._setup.delta, self.features.size)
        width = self.config.return_high - self.config.return_low
        return dp_lsw(seen, self._phi, self._weights, beta, width)

    def blocks(self) -> tuple[Block, ...]:
        """theta; its clip stands for the least smooth bound, when everybody visits everything."""
        most = torch.full_like(self._weights, float(self._setup.people))
        least = self.answer(Visits(torch.zeros_like(most), most)).bound
        return (Block("theta", self.features.size, float(least)),)


ALGORITHM, CONFIG = DpLsw, DpLswConfig
