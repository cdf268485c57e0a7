"""No mechanism: pooled training without privacy, for baselines."""

from __future__ import annotations

from privrl_bench.config.traits import Rows
from privrl_bench.privacy.mechanisms.mechanism import Mechanism


class NoMechanism(Mechanism):
    """Nothing is clipped, noised or bounded."""

    name = "none"
    takes = Rows.POOLED
    records = ("none",)
    private = False
    pooled = True
    not_auditable = "privacy=none claims nothing, so there is nothing to measure"


MECHANISM = NoMechanism
