"""No mechanism: pooled training without privacy, for baselines."""

from __future__ import annotations

import math

from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms.mechanism import Mechanism


class NoMechanism(Mechanism):
    """Nothing is clipped, noised or bounded."""

    name = "none"
    records = ("none",)
    private = False
    pooled = True
    not_auditable = "privacy=none claims nothing, so there is nothing to measure"

    def release_event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.release_event`."""
        return ReleaseEvent("none", 0.0, self.terms.configs[r].adjacency)

    def paper_epsilon(self, r: int) -> float:
        """No paper prints one."""
        return math.inf


MECHANISM = NoMechanism
