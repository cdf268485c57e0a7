"""Named random streams of one replica: environments, initial parameters, policy, evaluation.

A stream is a function of (seed, name, counters), not of earlier draws. Hence a resumed run uses the same
random numbers as an uninterrupted one, replicas do not affect each other, and no generator state is
stored. Privacy noise is drawn by the gate (`privacy/noise.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privrl_bench.types import generator

Draw = Callable[[torch.Generator, int], Tensor]
_SLOTS = 64  # whose random numbers are drawn from one generator

# Fixed tags, so that adding a stream never changes the others.
_TAGS = {
    **{"env": 11, "init": 12, "policy": 13, "user_update": 14, "eval_env": 15, "eval_policy": 16},
    **{"after_release": 17, "play_env": 18, "play_policy": 19},
}


@dataclass(frozen=True)
class Streams:
    """The streams of the replica with this seed."""

    seed: int
    side: int = 0  # 0: the run; 1: public simulations of the algorithm; 2: public references

    @property
    def public(self) -> Streams:
        """Streams for public simulations, independent of all others."""
        return replace(self, side=1)

    def torch(self, name: str, *counters: int) -> torch.Generator:
        """Return a new generator of stream `name` at `counters`, for example (round,)."""
        return generator(self.seed, self._tag(name), *counters)

    def per_user(
        self,
        name: str,
        round_index: int,
        slots: range,
        numbers: Sequence[int] | None,
        draw: Draw,
    ) -> Tensor:
        """Random numbers [..., n, ...] of n users of a round: a function of the user, not of the others.

        Args:
            name: of the stream.
            round_index: selects the numbers.
            slots: [n] consecutive, of the round; they stand for simulated users.
            numbers: [n] of the users, -1: none; None: simulated users who act once have no number.
            draw: (generator, n) -> numbers of n users along axis 1.
        """
        if numbers is not None:
            each = [draw(self.torch(name, round_index, max(k, 0)), 1) for k in numbers]
            return torch.cat(each, dim=1)
        pages = range(slots.start // _SLOTS, max(slots.stop - 1, slots.start) // _SLOTS + 1)
        drawn = [draw(self.torch(name, round_index, *([k] if k else [])), _SLOTS) for k in pages]
        at = slots.start - pages.start * _SLOTS
        return torch.cat(drawn, dim=1)[:, at : at + len(slots)]

    def episode_seed(self, name: str, *counters: int) -> int:
        """Return a 32-bit seed for one episode's `reset` at `counters`, for example (slot, episode)."""
        words = [self.seed, self._tag(name), *counters]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

    def _tag(self, name: str) -> int:
        return _TAGS[name] + 1000 * self.side
