"""Gaussian noise on every clipped gradient of a minibatch, inside training and beside the gate.

Source: Doulazmi and Odonnat, "Differential Privacy in Reinforcement Learning", algorithm 3. It is an
imitation of published code, never a guarantee by itself: where it is used, a caveat stands in the guarantee.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Rows
from privrl_bench.errors import PrivacyError, require
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms.mechanism import Mechanism, Terms

if TYPE_CHECKING:
    import torch
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.config.schema import PrivacyConfig

PER_TRANSITION = (
    "noise is added to gradients of single transitions, while all later ones of an episode depend on each; "
    "exploration and the number of updates depend on them without noise; and while the memory is not full, "
    "each is drawn more often than epsilon counts"
)


def sample_noise(draws: list[torch.Generator], size: int) -> Tensor:
    """[R, size] standard normals, from each replica's own stream."""
    import torch

    return torch.stack([torch.randn(size, generator=g) for g in draws])


class PerTransition(Mechanism):
    """The algorithm noises gradients; the gate passes everything on."""

    name = "per_transition"
    takes = Rows.TRANSITIONS
    records = ("per_transition",)
    adjacencies = ("replace_one",)
    pooled = True
    transition_noise = True
    imitation = True
    # Wang, Balle and Kasiviswanathan 2019: dp-accounting's only analysis of such draws.
    analysed_by = "rdp"

    def __init__(self, terms: Terms):
        super().__init__(terms)
        if terms.unit.draw is None:
            raise PrivacyError("noise on transitions needs a unit that says how they are drawn")

    @classmethod
    def validate(cls, privacy: PrivacyConfig) -> None:
        """See `Mechanism.validate`: noise and drawn transitions come from the run's seed, as in their code."""
        super().validate(privacy)
        rule = f"seeded for privacy.mechanism={cls.name}, whose noise and draws come from the run's seed"
        require("privacy.noise", privacy.noise == "seeded", rule, privacy.noise)

    @classmethod
    def composed(cls, counts: tuple[tuple[ReleaseEvent, int], ...]) -> DpEvent:
        """A transition stays in a full memory of M for M updates, each of B drawn without replacement.

        Every one of B clipped gradients gets noise z clip, so their sum has z sqrt(B) clip. However many
        rounds there are, a transition is in so many updates: releases do not add up.

        Raises:
            PrivacyError: releases of several memories or batches, or another adjacency.
        """
        from dp_accounting import (
            GaussianDpEvent,
            NonPrivateDpEvent,
            SampledWithoutReplacementDpEvent,
            SelfComposedDpEvent,
        )

        releases = [release for release, _ in counts]
        if len({(one.population, one.cap) for one in releases}) > 1:
            raise PrivacyError("noise on transitions is counted for one size of memory and batch")
        if any(one.adjacency != "replace_one" for one in releases):
            raise PrivacyError("draws without replacement are analysed under replace_one only")
        release = min(releases, key=lambda one: one.z)
        memory, batch = int(release.population or 0), int(release.cap or 0)
        if not release.z > 0:
            return NonPrivateDpEvent()
        event: DpEvent = GaussianDpEvent(release.z * math.sqrt(batch))
        if batch < memory:
            event = SampledWithoutReplacementDpEvent(memory, batch, event)
        return SelfComposedDpEvent(event, memory)

    def event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.event`."""
        z, (batch, memory) = self.terms.configs[r].noise_multiplier, self.terms.unit.draw or (0, 0)
        return self.recorded(r, "per_transition", z, population=memory, cap=batch)


MECHANISM = PerTransition
