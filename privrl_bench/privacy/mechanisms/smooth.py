"""Output perturbation by smooth sensitivity: f(X) + S(X) / a * N(0, I), for one release.

S is b-smooth (neighbours' values differ by a factor of exp(b) at most) and above the local L2 sensitivity of f.
With (a, b) admissible for Gaussian noise in d dimensions the release is (epsilon, delta)-private (Nissim,
Raskhodnikova and Smith 2007, lemma 2.6): moving the centre by at most a deviations costs epsilon / 2, changing
the deviation by a factor within exp(+-b) another epsilon / 2. They, and Balle et al. 2016 after them, take

    1 / a = 5 sqrt(2 ln(2 / delta)) / epsilon,    b = epsilon / (4 (d + ln(2 / delta))).

Their lemma splits delta in halves and leaves out a factor exp(epsilon / 2) on one of them, and its proof is for
small epsilon. So nothing is taken on trust: `spent_delta` computes both costs exactly, and `require_admissible`
refuses an (epsilon, delta, d) for which delta_move exp(epsilon / 2) + delta_stretch > delta in either order of
the two steps. (Both are largest at the ends, a and +-b, because the ratios of the densities are monotone in one
number: the projection on the move, and the norm.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Rows
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms.mechanism import Attempt, Mechanism, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.config.schema import PrivacyConfig


def noise_factor(epsilon: float, delta: float) -> float:
    """1 / a: noise std / smooth bound."""
    return 5.0 * math.sqrt(2.0 * math.log(2.0 / delta)) / epsilon


def smoothness(epsilon: float, delta: float, size: int) -> float:
    """b, for outputs of `size` numbers."""
    return epsilon / (4.0 * (size + math.log(2.0 / delta)))


def spent_delta(epsilon: float, move: float, stretch: float, size: int) -> float:
    """Delta at `epsilon` of a move by `move` deviations and a factor exp(+-stretch) of the deviation.

    Each step is at epsilon / 2; the order of the two that costs more counts.
    """
    import numpy as np
    from scipy.stats import chi2, norm

    half = epsilon / 2.0
    moved = norm.cdf(move / 2 - half / move) - math.exp(half) * norm.cdf(-move / 2 - half / move)
    stretched = 0.0
    for log_factor in (stretch, -stretch):
        # ln of N(0, 1) over N(0, f^2): size ln f - |x|^2 / 2 (1 - f^-2), above half outside or inside a ball.
        slope = -np.expm1(-2.0 * log_factor) / 2.0
        edge = (size * log_factor - half) / slope
        law = chi2.cdf if log_factor > 0 else chi2.sf
        there, other = law(edge, size), law(edge * math.exp(-2.0 * log_factor), size)
        stretched = max(stretched, float(there - math.exp(half) * other))
    moved = max(float(moved), 0.0)
    both = moved + math.exp(half) * stretched, stretched + math.exp(half) * moved
    return max(both)


def require_admissible(epsilon: float, delta: float, size: int) -> None:
    """Raise PrivacyError where `noise_factor` and `smoothness` do not give (epsilon, delta)."""
    b = smoothness(epsilon, delta, size)
    # A bound that is above the local sensitivity of both neighbours moves the centre by at most a.
    spent = spent_delta(epsilon, 1.0 / noise_factor(epsilon, delta), b, size)
    if not spent <= delta:
        raise PrivacyError(
            f"smooth sensitivity is not proven for epsilon {shown_epsilon(epsilon)}, delta {delta:g} and "
            f"{size} numbers: it spends delta {spent:.2g}; use a smaller privacy.epsilon"
        )


class Smooth(Mechanism):
    """One output about all users, with the noise of its smooth sensitivity."""

    name = "smooth"
    takes = Rows.OUTPUT
    in_papers = True
    records = ("smooth",)
    adjacencies = ("replace_one",)
    pooled = True
    one_release = True
    not_auditable = "canaries are rows at the gate, and privacy=smooth noises one answer; see leaks"

    @classmethod
    def validate(cls, privacy: PrivacyConfig) -> None:
        """See `Mechanism.validate`: epsilon makes the noise, z has no meaning."""
        if privacy.epsilon is None:
            raise ConfigError(
                "privacy.epsilon", "privacy=smooth makes its noise for it: a number > 0, got null"
            )
        if privacy.z != 1:
            got = "auto" if privacy.z is None else f"{privacy.z:g}"
            raise ConfigError(
                "privacy.z", f"privacy=smooth takes privacy.epsilon, so it stays 1, got {got}"
            )
        super().validate(privacy)

    @classmethod
    def single(cls, release: ReleaseEvent) -> DpEvent:
        """See `Mechanism.single`."""
        from dp_accounting import NonPrivateDpEvent

        from privrl_bench.privacy.accounting.accountants import StatedDpEvent

        if release.epsilon is None:
            return NonPrivateDpEvent()
        return StatedDpEvent(release.epsilon, release.delta or 1.0)

    def __init__(self, terms: Terms):
        super().__init__(terms)
        config = terms.configs[0]
        self._goal = float(config.epsilon or 0.0), config.delta
        require_admissible(*self._goal, sum(block.size for block in terms.blocks))
        self._spread: Tensor  # [R] noise std of this round

    def event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.event`."""
        config = self.terms.configs[r]
        return self.recorded(r, "smooth", 0.0, epsilon=config.epsilon, delta=config.delta)

    def prepare(self, smooth: Tensor | None, complete: bool) -> None:
        """See `Mechanism.prepare`: the smooth bound on the local sensitivity, which is secret."""
        if smooth is None:
            raise PrivacyError("an output with a smooth bound and mechanism=smooth go together")
        bound = smooth.double()
        least = min(block.clip for block in self.terms.blocks)
        if not complete or not bool((bound >= least * (1 - 1e-9)).all()):
            raise PrivacyError(
                "an output or its smooth bound is not finite, or below the least bound"
            )
        self._spread = bound * noise_factor(*self._goal)

    def privatize(self, sums: dict[str, Tensor], attempt: Attempt) -> dict[str, Tensor]:
        """See `Mechanism.privatize`."""
        from privrl_bench.privacy.contribution import on_grid

        noised, drawn = dict(sums), attempt.normal([block.size for block in self.terms.blocks])
        for block, one in zip(self.terms.blocks, drawn, strict=True):
            # The grid is public: that of the least noise, which block.clip stands for.
            least = block.clip * noise_factor(*self._goal)
            spread = self._spread[attempt.replica]
            noised[block.name] = on_grid(sums[block.name] + spread * one, least)
        return noised

    def released(self, attempt: Attempt) -> None:
        """See `Mechanism.released`: the noise std, which depends on data, is forgotten."""
        self._spread[attempt.replica] = math.nan


MECHANISM = Smooth
