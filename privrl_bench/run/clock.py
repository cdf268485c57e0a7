"""The clock of a run: seconds of training, over interruptions."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence


class Clock:
    """Seconds and speed of the replicas that are trained together.

    Args:
        earlier: seconds of earlier parts of each run.
        steps: environment steps of each run when the clock starts.
    """

    def __init__(self, earlier: Sequence[float], steps: int = 0):
        self._earlier, self._steps = list(earlier), steps
        self._started = time.perf_counter()
        self._stopped = math.inf

    def stop(self) -> None:
        """Stop: training is over, and the plots of other replicas do not count."""
        self._stopped = time.perf_counter()

    def timing(self, r: int, steps: int) -> dict[str, float]:
        """Return the seconds of replica `r` and its speed since the clock started, at so many steps."""
        here = min(time.perf_counter(), self._stopped) - self._started
        return {
            "wall_seconds": round(self._earlier[r] + here, 3),
            "steps_per_second": round((steps - self._steps) / max(here, 1e-9), 1),
        }
