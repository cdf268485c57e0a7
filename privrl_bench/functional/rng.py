"""Named random streams of one replica: environments, initial parameters, policy, evaluation.

A stream is a function of (seed, name, counters), not of earlier draws. Hence a resumed run uses the same
random numbers as an uninterrupted one, replicas do not affect each other, and no generator state is
stored. Privacy noise is drawn by the gate (`privacy/noise.py`).

Users who are simulated on a device (`env.backend=torch`, `warp`) draw from counters: a number is a function of
the stream, the user's slot in the round and its place in the user's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.types import generator

Draw = Callable[[Any, int], Tensor]
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
    device: str | None = None  # where users' numbers are drawn from counters; None: by generators

    @property
    def public(self) -> Streams:
        """Streams for public simulations, independent of all others."""
        return replace(self, side=1, device=None)

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
        if self.device is not None:
            return draw(self.counters(name, slots, round_index), len(slots))
        if numbers is not None:
            each = [draw(self.torch(name, round_index, max(k, 0)), 1) for k in numbers]
            return torch.cat(each, dim=1)
        pages = range(slots.start // _SLOTS, max(slots.stop - 1, slots.start) // _SLOTS + 1)
        drawn = [draw(self.torch(name, round_index, *([k] if k else [])), _SLOTS) for k in pages]
        at = slots.start - pages.start * _SLOTS
        return torch.cat(drawn, dim=1)[:, at : at + len(slots)]

    def counters(self, name: str, slots: range, *words: int) -> UserCounters:
        """The random numbers of simulated users on the device, at counters such as (round,)."""
        return UserCounters((self.seed, self._tag(name), *words), slots, self.device or "cpu")

    def episode_seed(self, name: str, *counters: int) -> int:
        """Return a 32-bit seed for one episode's `reset` at `counters`, for example (slot, episode)."""
        words = [self.seed, self._tag(name), *counters]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

    def _tag(self, name: str) -> int:
        return _TAGS[name] + 1000 * self.side


# --- counters

_WORD = 0xFFFFFFFF
_FACTORS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(counter: Sequence[Tensor], key: Sequence[int]) -> tuple[Tensor, ...]:
    """Philox4x32-10: four random words for each counter.

    Args:
        counter: four int64 tensors of words below 2^32, broadcast against each other.
        key: two words.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(10):
        left, right = a * _FACTORS[0], c * _FACTORS[1]  # modulo 2^64
        a, b = (right >> 32 & _WORD) ^ b ^ first, right & _WORD
        c, d = (left >> 32 & _WORD) ^ d ^ second, left & _WORD
        first, second = first + _STEPS[0] & _WORD, second + _STEPS[1] & _WORD
    return a, b, c, d


def uniform(generator: torch.Generator | UserCounters, *shape: int) -> Tensor:
    """Numbers in [0, 1) from either kind of generator."""
    if isinstance(generator, UserCounters):
        return generator.uniform(*shape)
    return torch.rand(*shape, generator=generator)


class UserCounters:
    """Random numbers of the users in some slots of a round; each call has new ones.

    Args:
        words: of the stream, integers >= 0.
        slots: [n] of the users.
        device: of the numbers.
    """

    def __init__(self, words: tuple[int, ...], slots: range, device: str):
        self._key = np.random.SeedSequence(words).generate_state(2).tolist()
        self._slots = torch.arange(slots.start, slots.stop, device=device)[:, None]
        self._calls = 0

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), multiples of 2^-24; the second axis is the users'."""
        return (self._words(1, shape)[0] >> 8) * 2.0**-24

    def gaussian(self, *shape: int) -> Tensor:
        """Standard normal numbers (Box and Muller 1958), at most 6.7; the second axis is the users'."""
        length, angle = self._words(2, shape)
        radius = (-2.0 * torch.log((length + 1) * 2.0**-32)).sqrt()
        return radius * torch.cos((angle >> 8) * (2.0**-23 * math.pi))

    def _words(self, each: int, shape: tuple[int, ...]) -> Tensor:
        """`each` words for every number: [each, *shape]."""
        users, rest = shape[1], (shape[0], *shape[2:])
        count = each * math.prod(rest)
        block = torch.arange(math.ceil(count / 4), device=self._slots.device)
        zero = torch.zeros_like(block)
        self._calls += 1
        four = philox((block, self._slots, zero + self._calls, zero), self._key)
        words = torch.stack(four, dim=-1).reshape(users, -1)[:, :count]
        return words.reshape(users, each, *rest).movedim(0, 2)
