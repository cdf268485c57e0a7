"""DPPG-L2: log-linear policy gradient clipped for an L2 trust region. See `trajectory_gradient`.

Source:
    "Differentially Private Policy Gradient" (Rio, Barlier, Colin), proposition 4.4 (4.5 with `algo.markov`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.loglinear.loglinear_settings import DppgL2Config
from privrl_bench.algorithms.loglinear.trajectory_gradient import LogLinear
from privrl_bench.functional.trust_region import l2_clip, l2_clip_markov
from privrl_bench.types import State


class DppgL2(LogLinear):
    """DPPG-L2."""

    config: DppgL2Config

    def radius(self, state: State) -> Tensor:
        """See `LogLinear.radius`: proposition 4.4 or 4.5, from the round, z and the parameter count."""
        config = self.config
        bound = l2_clip_markov if config.markov else l2_clip
        eta = self.learning_rate(state.round)
        clip = bound(eta, self.z.numpy(), config.alpha, 1 - config.confidence, self.policy.size)
        return torch.as_tensor(clip)


ALGORITHM = DppgL2
