"""Gaussian noise that is correlated over rounds, so that it cancels in sums of releases.

    release of round t = sum_t + z clip k (C^-1 w)_t,    w standard normal

C is the public strategy of `accounting/strategy.py`. All releases G + z clip k C^-1 w are post-processing of
C G + z clip k w. A row of norm `clip` in round t moves C G by clip times column t of C; the rows of a user in
m rounds move it by at most clip `Strategy.sensitivity(m)`. With k = sensitivity(m) / sqrt(m)
(`Strategy.scale`) everything released about one user is one Gaussian mechanism with multiplier z / sqrt(m),
the epsilon of m releases with independent noise of z clip. For users in one round k is the norm of a column,
and the multiplier z. This holds jointly over blocks, as 1 / z^2 = sum of 1 / z_b^2 and every block has the same
C. Replace-one moves a row twice as far (the accountant's part).

Sums may depend on earlier releases: with Gaussian noise and a lower-triangular C the guarantee is the same
(Denisov et al. 2022, theorem 2.1). In other words row t of C G is moved by a bounded distance, given the
past, and the squares of these distances add up to at most the sensitivity's, which is all that adaptive
composition of Gaussian mechanisms needs (Smith and Thakurta 2022). Assumed: w is fresh in every row, z, clip, C
and the number of rounds are public and fixed in advance, and a user's rounds do not depend on data.

Every attempt at a round is a row of its own, with fresh w, of a longer C: it contains this attempt and the
attempts of earlier rounds whose noise it cancels. So a user of round s moves the whole ledger by at most the
root of the sum, over the lines of rounds t >= s, of c_{t - s}^2 (`spent`).

*On the integer grid* (`grid.py`) the noise of a round is y_t = w_t - round(sum over k of c_k y_{t - k}), with
integers w. Given the releases, a change of row s by D moves w_t by an integer vector that is c_{t - s} D up to
a rounding of less than 1 in each of P numbers (and the error of a sum in double precision), exactly D in row
s. So the rows of one user move w by at most their norm in C G plus sqrt(P n), n the number of rows of C that
contain them; grid.MARGIN of a clip, which clipping leaves free, is larger (`_is_covered`). A line of round t
contains rows of rounds s with s <= t < s + bands only. So for a user in m rounds n is at most min(m bands, T)
first attempts and the repeats in m such windows: at most m times those of the worst window, and at most all
(`too_many`). With `seeded` noise w is a rounded Gaussian, so that all releases are post-processing of Gaussian
noise; with `secure` noise w is discrete, see `grid.py`.

Noise stays in memory until it is cancelled, `bands` - 1 vectors for each replica, and is nowhere else. After a
restart seeded noise is drawn again. Secure noise is lost, and the strategy begins anew: later rows contain
fewer earlier rounds, so they move less. Rounds that are repeated have further lines.

Rows are not amplified by Poisson sampling: a round's user is in later rows, too. (Banded strategies have an
analysis for sampling from groups that take turns; no sampler here does that.)
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.grid import MARGIN, REPEATS
from privrl_bench.privacy.mechanisms.gaussian import Gaussian
from privrl_bench.privacy.mechanisms.mechanism import Attempt, Terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.accounting.strategy import Strategy
    from privrl_bench.privacy.contribution import Block
    from privrl_bench.privacy.ledger import Ledger

_CANCELS = "repeats_before"  # in a line: repeated attempts at earlier rounds when it was written


class Past:
    """The noise of one replica's last rounds, which later noise cancels; integers, in units of the grid.

    Args:
        coefficients: of C.
    """

    def __init__(self, coefficients: Sequence[float]):
        self._coefficients = [float(c) for c in coefficients]
        self._rows: dict[int, np.ndarray] = {}  # round -> [P] int64

    def correlated(self, fresh: Tensor, round_index: int) -> Tensor:
        """[P] row of C^-1 w: w of this round less the rounded sum of c_k times the noise of k rounds before.

        The order of the sum is that of k, whatever the memory, so that it is the same on every machine.
        """
        import numpy as np
        import torch

        total, lost = np.zeros(len(fresh)), np.zeros(len(fresh))
        for ago in range(1, len(self._coefficients)):
            row = self._rows.get(round_index - ago)
            if row is not None:  # Knuth's sum of two numbers and its exact error
                term = self._coefficients[ago] * row
                new = total + term
                part = new - total
                lost += (total - (new - part)) + (term - part)
                total = new
        return fresh - torch.from_numpy(np.rint(total + lost).astype(np.int64))

    def keep(self, round_index: int, noise: Tensor) -> None:
        """The noise of a round was released."""
        self._rows[round_index] = noise.numpy()
        oldest = round_index - len(self._coefficients) + 2  # that the next round cancels
        for index in [index for index in self._rows if index < oldest]:
            del self._rows[index]


class Correlated(Gaussian):
    """Noise that later noise cancels, at the epsilon of independent noise.

    All rows of one user in everything released are one Gaussian mechanism; see the module.
    """

    name = "correlated"
    records: ClassVar[tuple[str, ...]] = ("correlated",)
    subsampled = False
    own = ("correlation", "bands", *Gaussian.own)

    def __init__(self, terms: Terms):
        """Raises PrivacyError: the plan has no room for rounding in as many repeats, and REPEATS."""
        super().__init__(terms)
        self._past: dict[int, Past] = {}
        self._made: tuple[tuple[int, int, int], Tensor] | None = None
        if terms.unit.participation is None:
            raise PrivacyError(
                "correlated noise is analysed for users in a bounded number of rounds"
            )
        rows = self._planned_rows
        if not self._is_covered(2 * rows + REPEATS):
            raise PrivacyError(
                f"correlated noise this large, on {sum(self.sizes)} numbers in {rows} rounds, has no analysis; "
                "use less of it, privacy.bands or privacy=fixed"
            )

    # -- noise ------------------------------------------------------------------------------

    @cached_property
    def strategy(self) -> Strategy:
        """See `Mechanism.strategy`: the damped square root."""
        from privrl_bench.privacy.accounting.strategy import Strategy

        config, terms = self.terms.configs[0], self.terms
        return Strategy.damped_square_root(
            config.correlation, terms.rounds, config.bands, terms.unit.participation or 1
        )

    def settings(self, r: int) -> dict[str, Any]:
        """See `Mechanism.settings`: C and the size of its noise."""
        correlation, strategy = self.terms.configs[r].correlation, self.strategy
        return {"correlation": correlation, "bands": strategy.bands, "scale": strategy.scale}

    def details(self, r: int, round_index: int, ledger: Ledger) -> dict[str, Any]:
        """See `Mechanism.details`."""
        return {**super().details(r, round_index, ledger), _CANCELS: ledger.repeats(round_index)}

    def unit_noise(self, block: Block) -> float:
        """See `OnGrid.unit_noise`."""
        return block.clip * self.strategy.scale

    def noise(self, attempt: Attempt) -> list[Tensor]:
        """See `OnGrid.noise`: this round's row of C^-1 w."""
        key = (attempt.replica, attempt.round, attempt.number)
        if self._made is None or self._made[0] != key:
            past = self._past_of(attempt)
            self._made = key, past.correlated(self._fresh(attempt), attempt.round)
        return list(self._made[1].split(self.sizes))

    def _fresh(self, attempt: Attempt) -> Tensor:
        """W of an attempt, all blocks."""
        import torch

        return torch.cat(super().noise(attempt))

    def _past_of(self, attempt: Attempt) -> Past:
        """Noise of earlier rounds. The first time, after a restart: drawn again if seeded, else lost."""
        if attempt.replica in self._past:
            return self._past[attempt.replica]
        past = self._past[attempt.replica] = Past(self.strategy.coefficients)
        if attempt.source.name != "seeded":
            return past
        repeats = 0
        for line in attempt.ledger.last_lines(attempt.round):
            index, number = int(line["round"]), int(line["attempt"])
            if line.get(_CANCELS) != repeats:
                raise PrivacyError(
                    f"the noise of round {index} cancels noise of earlier rounds, which were repeated since; "
                    "this checkpoint is not the one that followed (start a new folder)"
                )
            repeats += number
            earlier = replace(attempt, round=index, number=number)
            past.keep(index, past.correlated(self._fresh(earlier), index))
        return past

    def released(self, attempt: Attempt) -> None:
        """See `Mechanism.released`: from now on this noise is to be cancelled."""
        key = (attempt.replica, attempt.round, attempt.number)
        if self._made is not None and self._made[0] == key:  # there was noise
            self._past[attempt.replica].keep(attempt.round, self._made[1])
            self._made = None

    def release_noise(self, r: int) -> dict[str, float]:
        """See `Mechanism.release_noise`: the last row of C^-1 is the longest."""
        import numpy as np

        row = float(np.linalg.norm(self.strategy.inverse(self.terms.rounds)))
        return {name: row * std for name, std in super().release_noise(r).items()}

    # -- accounting -------------------------------------------------------------------------

    @property
    def _planned_rows(self) -> int:
        """Rows of C that contain one user, if no round is repeated."""
        times = self.terms.unit.participation or 1
        return min(times * self.strategy.bands, self.terms.rounds)

    def _is_covered(self, rows: int) -> bool:
        """Whether rounding in so many rows moves at most what clipping leaves free; see the module."""
        # The sum of what is cancelled is in double precision, in both worlds: 1, and twice its error, of
        # which the rounding of products is all that counts (`Past.correlated`).
        largest = 40.0 * max(max(self.grid_stds(r)) for r in range(len(self.terms.configs)))
        each = 1.0 + 2.0**-51 * largest * (1.0 + sum(self.strategy.coefficients))
        free = MARGIN * min(block.clip / block.unit for block in self.terms.blocks)
        return math.sqrt(sum(self.sizes) * float(rows)) * each <= free

    def too_many(self, ledger: Ledger, below: int | None) -> bool:
        """See `Mechanism.too_many`: in all, or in the rows of one user."""
        window = ledger.most_repeats(self.strategy.bands, below)
        own = min((self.terms.unit.participation or 1) * window, ledger.repeats(below))
        return super().too_many(ledger, below) or not self._is_covered(self._planned_rows + own)

    @classmethod
    def composed(cls, counts: tuple[tuple[ReleaseEvent, int], ...]) -> DpEvent:
        """See `Mechanism.composed`: norms of columns add up at most, wherever the rounds are."""
        from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

        if any(release.z <= 0 for release, _ in counts):
            return NonPrivateDpEvent()
        return GaussianDpEvent(1.0 / sum(count / release.z for release, count in counts))

    @classmethod
    def gaussians(
        cls, counts: tuple[tuple[ReleaseEvent, int], ...]
    ) -> tuple[tuple[float, int], ...] | None:
        """See `Mechanism.gaussians`."""
        if cls is not Correlated:
            return None
        noise = all(release.z > 0 for release, _ in counts)
        return ((1.0 / sum(n / release.z for release, n in counts) if noise else 0.0, 1),)

    def event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.event`: one row of one user in everything released."""
        return self._moved(r, self.strategy.norm())

    def _moved(self, r: int, sensitivity: float) -> ReleaseEvent:
        """Everything released about a user who moves C G by so many clips, more than 0."""
        z = self.joint_z(r) * (self.strategy.scale / sensitivity)
        return self.recorded(r, self.records[0], z)

    def planned_releases(self, r: int, participation: int | None) -> tuple[ReleaseEvent, int]:
        """See `Mechanism.planned_releases`: all rows of one user together."""
        times = self.strategy.sensitivity(participation or self.terms.rounds)
        return self._moved(r, times), 1

    def spent(
        self, r: int, ledger: Ledger, participation: int | None, below: int | None
    ) -> list[Counter[ReleaseEvent]]:
        """See `Accounting.spent`."""
        import numpy as np

        times, length = participation or self.terms.rounds, ledger.end(below)
        if not length:
            return []
        if not ledger.repeats(below):
            moved = replace(self.strategy, rounds=length).sensitivity(times)
        else:
            # Of every round s: sum over the lines of rounds t >= s of c_{t - s}^2. Several rounds of one
            # user: norms add up at most.
            squares = np.square(self.strategy.coefficients)
            attempts = ledger.attempts_by_round(below)
            sums = np.convolve(attempts[::-1], squares)[: len(attempts)]
            moved = times * float(np.sqrt(sums.max()))
        return [Counter([self._moved(r, moved)])]

    # -- description ------------------------------------------------------------------------

    @classmethod
    def notes(cls, privacy: PrivacyConfig) -> dict[str, str]:
        """See `Mechanism.notes`: where noise is remembered."""
        if privacy.noise != "secure":
            return {}
        return {
            "noise in memory": "the noise of the last releases stays in the memory of the process until later "
            "noise has cancelled it, and is never written; a resumed run begins the correlation anew"
        }

    def plan_entries(self, r: int) -> dict[str, Any]:
        """See `Mechanism.plan_entries`."""
        found = {"bands": self.strategy.bands, "column_norm": self.strategy.norm()}
        return {"correlated_noise": {"correlation": self.terms.configs[r].correlation, **found}}

    def describe_noise(self, r: int) -> str:
        """See `Mechanism.describe_noise`."""
        config = self.terms.configs[r]
        if not config.noise_multiplier:
            return ""
        how = f"(privacy.correlation={config.correlation:g})"
        return f"Gaussian, correlated over {self.strategy.bands} rounds {how}"


MECHANISM = Correlated
