"""DP-LSL: ridge regression of first-visit returns weighted by visits, with the noise of its smooth sensitivity.

    G <- diag(weight_s |X_s| / n), F as in `dp_lsw`
    theta <- (Phi^T G Phi + lambda / (2 n) I)^-1 Phi^T G F + N(0, sigma^2 I)

with lambda = |Phi|^2 max weight + ridge n^power, so that lambda exceeds what the theorem needs. Guarantee: see
`dp_lsw`. Source: Balle, Gomrokchi and Precup 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privrl_bench.algorithms.ope.linear_evaluation import OutputConfig, OutputPerturbation
from privrl_bench.errors import require
from privrl_bench.functional.policy_evaluation import Smooth, Visits, dp_lsl, spectral
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.mechanisms.smooth import smoothness


@dataclass
class DpLslConfig(OutputConfig):
    """Settings of DP-LSL."""

    name: str = "dp_lsl"
    ridge: float = 100.0  # lambda = |Phi|^2 max weight + ridge n^power
    power: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.ridge", self.ridge > 0, "> 0", self.ridge)
        require("algo.power", 0 <= self.power <= 1, "in [0, 1]", self.power)


class DpLsl(OutputPerturbation):
    """See the module's text."""

    config: DpLslConfig

    def answer(self, seen: Visits) -> Smooth:
        """theta [..., d] without noise, and its smooth bound."""
        config, people = self.config, self._setup.people
        beta = smoothness(self._setup.epsilon or 0.0, self._setup.delta, self.features.size)
        offset = spectral(self._phi) ** 2 * float(self._weights.max())
        ridge = offset + config.ridge * people**config.power
        width = config.return_high - config.return_low
        return dp_lsl(seen, self._phi, self._weights, ridge, people, beta, width)

    def blocks(self) -> tuple[Block, ...]:
        """theta; its clip stands for the least smooth bound, when nobody visits anything."""
        none = torch.zeros_like(self._weights)
        return (Block("theta", self.features.size, float(self.answer(Visits(none, none)).bound)),)


ALGORITHM, CONFIG = DpLsl, DpLslConfig
