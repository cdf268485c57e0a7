"""Gaussian noise on the clipped sum of a round, integers both (`grid.py`).

Guarantee: for one user in one slot of a round, a release is a Gaussian mechanism with multiplier z jointly
over all blocks under zero-out adjacency, z / 2 under replace-one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms.on_grid import OnGrid

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Gaussian(OnGrid):
    """Noise N(0, (z clip)^2) on every clipped sum."""

    name = "gaussian"
    records: ClassVar[tuple[str, ...]] = ("gaussian",)
    subsampled = True
    in_papers = True

    @classmethod
    def single(cls, release: ReleaseEvent) -> DpEvent:
        """See `Mechanism.single`."""
        from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

        return GaussianDpEvent(release.z) if release.z > 0 else NonPrivateDpEvent()

    @classmethod
    def gaussians(
        cls, counts: tuple[tuple[ReleaseEvent, int], ...]
    ) -> tuple[tuple[float, int], ...] | None:
        """See `Mechanism.gaussians`: of cohorts that were not drawn."""
        if cls is not Gaussian or any(release.q < 1.0 for release, _ in counts):
            return None
        return tuple((release.z, count) for release, count in counts)

    def event(self, r: int) -> ReleaseEvent:
        """See `Accounting.event`. Raises PrivacyError: the blocks' noise does not give z."""
        return self.recorded(r, "gaussian", self.joint_z(r))


MECHANISM = Gaussian
