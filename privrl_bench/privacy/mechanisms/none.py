"""No mechanism: pooled training without privacy, for baselines."""

from __future__ import annotations

from privrl_bench.privacy.mechanisms.mechanism import Mechanism


class NoMechanism(Mechanism):
    """Nothing is clipped, noised or bounded."""

    name = "none"
    records = ("none",)
    private = False
    pooled = True
    not_auditable = "privacy=none claims nothing, so there is nothing to measure"


MECHANISM = NoMechanism
