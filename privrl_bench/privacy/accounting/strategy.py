"""Strategies of correlated noise: a public lower-triangular Toeplitz matrix C over rounds.

Its column t says in which rounds, and by how much, one row of round t is in C G, where G [rounds, P] holds the
clipped sums. So norms of columns, and of sums of columns, are L2 sensitivities in units of the clip.

    c_k = a^k binom(2 k, k) / 4^k,   k < bands

a = 1 is the square root of the prefix sum (Fichtenberger, Henzinger and Upadhyay 2023), a = 0 independent
noise; a < 1 damps it, as "Correlated noise provably beats independent noise" (Choquette-Choo et al. 2024)
derives for training that contracts. Without the coefficients from `bands` on it is banded (Choquette-Choo et
al. 2023, "(Amplified) banded matrix factorization"), so that noise is kept for `bands` rounds only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_LEAST = 1e-3  # smaller coefficients are cut where the number of bands is not given
_MOST_BANDS = 320_000  # c_k of a = 1 falls below `_LEAST` here


@dataclass(frozen=True)
class Strategy:
    """C for a number of rounds.

    Attributes:
        coefficients: c_0 = 1, c_1, ...: not negative and not increasing; one for each band.
        rounds: number of rows and columns.
        participation: rounds that one user is in at most, for `scale`.
    """

    coefficients: tuple[float, ...]
    rounds: int
    participation: int = 1

    @classmethod
    def damped_square_root(
        cls, correlation: float, rounds: int, bands: int | None = None, participation: int = 1
    ) -> Strategy:
        """The strategy above.

        Args:
            correlation: a, in [0, 1].
            rounds: number of releases of the run.
            bands: number of coefficients; None: all that are at least 0.001.
            participation: see `Strategy`.

        >>> Strategy.damped_square_root(1.0, 4).coefficients
        (1.0, 0.5, 0.375, 0.3125)
        >>> Strategy.damped_square_root(0.5, 1000, bands=3).coefficients
        (1.0, 0.25, 0.09375)
        """
        k = np.arange(1, min(rounds, bands or _MOST_BANDS, _MOST_BANDS))
        c = np.concatenate([[1.0], np.cumprod(correlation * (1.0 - 0.5 / k))])
        kept = c[c > 0] if bands else c[c >= _LEAST]
        return cls(tuple(map(float, kept)), rounds, participation)

    @property
    def bands(self) -> int:
        """Number of coefficients."""
        return len(self.coefficients)

    @cached_property
    def cumulated(self) -> np.ndarray:
        """[bands] squared norm of a column after 1, 2, ... rounds."""
        return np.cumsum(np.square(self.coefficients))

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the noise of a row of C G, in units of clip * z.

        With it a user in `participation` rounds has the epsilon that independent noise of clip * z has; for
        one round it is the norm of a column.
        """
        times = min(self.participation, self.rounds)
        return self.sensitivity(times) / math.sqrt(times)

    def norm(self) -> float:
        """L2 norm of the first column, the largest of all."""
        return math.sqrt(self.cumulated[min(self.rounds, self.bands) - 1])

    def sensitivity(self, participation: int, separation: int = 1) -> float:
        """L2 sensitivity of C G, in clips, to a user with one row in each of several rounds.

        Rows of norm at most 1 in rounds t_1 < t_2 < ... move C G by a squared norm of
        sum_ij <C_ti, C_tj> <x_i, x_j> <= sum_ij <C_ti, C_tj>, as no coefficient is negative. The inner
        product of two columns does not grow with their distance, nor with the later one's place (fewer rows
        are left), as coefficients do not increase. So the columns 0, s, 2 s, ... are the worst.

        Args:
            participation: rounds that the user is in at most, >= 1.
            separation: s, the least distance between two of them.
        """
        count = min(participation, -(-self.rounds // separation))
        if count == 1:
            return self.norm()
        length = min(self.rounds, (count - 1) * separation + self.bands)
        moved = np.zeros(length)
        for start in range(0, count * separation, separation):
            rows = min(self.bands, length - start)
            moved[start : start + rows] += self.coefficients[:rows]
        return float(np.linalg.norm(moved))

    def inverse(self, rounds: int) -> np.ndarray:
        """[rounds] first column of C^-1: how the noise of a round comes back in later ones."""
        c, d = np.array(self.coefficients), np.zeros(rounds)
        d[0] = 1.0
        for k in range(1, rounds):
            known = d[max(0, k - self.bands + 1) : k][::-1]
            d[k] = -float(c[1 : len(known) + 1] @ known)
        return d
