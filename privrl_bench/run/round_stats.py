"""Private metrics of a round, from parts of its users."""

from __future__ import annotations

import math
from typing import Any

_SUMMED = ("train/episodes", "train/invalid_users")
_PER_EPISODE = ("train/return_mean",)


class RoundStats:
    """Metrics of R replicas: sums, and means over episodes, or over steps for those of algorithms.

    Attributes:
        totals: of each replica: metric -> (weighted sum, weight).
    """

    def __init__(self, replicas: int):
        self.totals: list[dict[str, tuple[float, float]]] = [{} for _ in range(replicas)]

    def add_shard(self, stats: list[dict[str, float]]) -> None:
        """Add the `stats` of a batch."""
        for r, one in enumerate(stats):
            for name in _SUMMED:
                self._add(r, name, one[name], 1.0)
            for name in _PER_EPISODE:
                self._add(r, name, one[name], one["train/episodes"])

    def add_diagnostics(self, diagnostics: list[dict[str, float]], users: Any) -> None:
        """Add the diagnostics of a contribution of these users."""
        if diagnostics:
            steps = (users.mask & users.valid[..., None]).sum((1, 2)).tolist()
            for r, one in enumerate(diagnostics):
                for name, value in one.items():
                    self._add(r, name, value, steps[r])

    def merge(self, other: RoundStats) -> None:
        """Add the metrics of other users of the same round."""
        for r, one in enumerate(other.totals):
            for name, (total, weight) in one.items():
                mine = self.totals[r].get(name, (0.0, 0.0))
                self.totals[r][name] = (mine[0] + total, mine[1] + weight)

    def _add(self, r: int, name: str, value: float, weight: float) -> None:
        total, so_far = self.totals[r].get(name, (0.0, 0.0))
        if weight and not math.isnan(value):
            total, so_far = total + weight * value, so_far + weight
        self.totals[r][name] = (total, so_far)

    def metrics(self) -> list[dict[str, float]]:
        """The metrics of each replica; NaN for the mean of nothing."""
        return [
            {
                name: total if name in _SUMMED else total / weight if weight else math.nan
                for name, (total, weight) in one.items()
            }
            for one in self.totals
        ]
