"""Releases in a unit where the noise of every round is independent and N(0, I).

With a mechanism's public strategy C (`accounting/strategy.py`), the noise of block b's sum in round t is
z_b clip_b k (C^-1 w)_t, where w is standard normal and k is `Strategy.scale`. For independent noise C is the
identity and k is 1. So the rows of C X, divided by z_b clip_b k, have the noise w, where X are the noised sums.
No information is lost, since C is invertible. This is computed from the claim (C, clip, z) and with no code of
the mechanism.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import torch
from torch import Tensor

from privrl_bench.privacy.contribution import block_multipliers
from privrl_bench.run.plan import Plan

_MOST_ERRORS = 5.0  # standard errors; correct noise is further off with probability 1e-6


def noise_of_sums(parts: Plan) -> dict[str, float]:
    """Block name -> z_b clip_b k, the standard deviation of the noise in a row of C X."""
    multipliers = block_multipliers(parts.config.privacy.noise_multiplier, parts.gate.blocks)
    scale = parts.gate.mechanism.strategy.scale
    return {b.name: multipliers[b.name] * b.clip * scale for b in parts.gate.blocks}


class Whitening:
    """Turns the sums of successive rounds into rows of C X with noise N(0, I).

    Args:
        parts: of the run.
    """

    def __init__(self, parts: Plan):
        self._noise = noise_of_sums(parts)
        self._later = parts.gate.mechanism.strategy.coefficients[1:]
        self._past: deque[np.ndarray] = deque(maxlen=len(self._later))  # the latest first

    def row(self, sums: dict[str, Tensor]) -> np.ndarray:
        """[..., P] row of all blocks, from the sums [..., P_b] of the next round."""
        x = torch.cat([sums[name].double() / std for name, std in self._noise.items()], dim=-1)
        one = x.numpy()
        row = one.copy()
        for c, past in zip(self._later, self._past, strict=False):  # fewer rounds than coefficients
            row += c * past
        self._past.appendleft(one)
        return row


class NoiseTest:
    """Tests whether whitened noise has variance 1 and successive rows are not correlated.

    The noise of another C fails, also if it is large enough for its epsilon.
    """

    def __init__(self) -> None:
        self._count, self._pairs = 0, 0
        self._squares, self._products = 0.0, 0.0
        self._last: np.ndarray | None = None

    def add(self, row: np.ndarray) -> None:
        """The whitened noise [P] of the next round."""
        self._count += row.size
        self._squares += float(row @ row)
        if self._last is not None:
            self._pairs += row.size
            self._products += float(row @ self._last)
        self._last = row

    def problems(self) -> list[str]:
        """How the noise differs from the claimed one."""
        found = []
        variance = self._squares / max(1, self._count)
        if abs(variance - 1.0) > _MOST_ERRORS * math.sqrt(2.0 / max(1, self._count)):
            found.append(f"the noise has {variance:.3g} times the claimed variance")
        shared = self._products / max(1, self._pairs)
        if abs(shared) > _MOST_ERRORS / math.sqrt(max(1, self._pairs)):
            found.append(
                f"the noise is not that of the claimed strategy: correlation {shared:.2g} "
                "of successive rows where 0 is claimed"
            )
        return found
