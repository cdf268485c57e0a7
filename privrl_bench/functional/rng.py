"""Named random streams of one replica: environments, initial parameters, policy, evaluation.

Every stream is a function of (seed, name, counters), never of how much was drawn before. So a
resumed run continues with the numbers that an uninterrupted one would have used, a replica does not
depend on its neighbours, and no generator state has to be stored. Privacy noise is not here: it
belongs to the gate (`privacy/noise.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from privrl_bench.types import generator

# Fixed tags, so that adding a stream never changes the others.
_TAGS = {
    **{"env": 11, "init": 12, "policy": 13, "local": 14, "eval_env": 15, "eval_policy": 16},
    **{"after_release": 17, "play_env": 18, "play_policy": 19},
}


@dataclass(frozen=True)
class Streams:
    """The streams of the replica with this seed."""

    seed: int
    side: int = 0  # 0: the run's; 1: simulations of an algorithm's own, 2: references: nobody's

    @property
    def public(self) -> Streams:
        """Streams for simulations that are nobody's, apart from all others."""
        return replace(self, side=1)

    def torch(self, name: str, *counters: int) -> torch.Generator:
        """A fresh generator of stream `name` at `counters`, for example (round,)."""
        return generator(self.seed, self._tag(name), *counters)

    def episode_seed(self, name: str, *counters: int) -> int:
        """A 32-bit seed for one episode's `reset`, for example counters (slot, episode)."""
        words = [self.seed, self._tag(name), *counters]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

    def _tag(self, name: str) -> int:
        return _TAGS[name] + 1000 * self.side
