"""The privacy of a run: mechanism, noise, sampling and accounting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import Section, choice, integer, ranged, within
from privrl_bench.errors import ConfigError

ADJACENCIES = ("zero_out", "replace_one", "add_or_remove", "any_trajectory_pair")


@dataclass
class PrivacyConfig(Section):
    """The mechanism, its noise and its accounting. The gate is built from this alone."""

    prefix: ClassVar[str] = "privacy."

    # gaussian | correlated: noise that cancels over rounds | tree: sums over rounds | local: on devices
    # | fresh_noise_per_round, per_transition: leak | smooth: one release, noise by smooth sensitivity
    # | none. A module of privacy/mechanisms each.
    mechanism: str = "gaussian"
    # noise multiplier = noise std / clip, no unit; 0 adds no noise. None, on the command line `auto`: the least
    # for which all planned rounds cost at most `epsilon`
    z: float | None = ranged(
        1.0, "0 or in [1e-6, 1e6]", lambda z: z == 0 or 1e-6 <= z <= 1e6, null="auto"
    )
    clip: float = within(1.0, "[1e-9, 1e9]")  # L2 bound of one user's row, parameter units
    delta: float = within(1e-5, "[1e-100, 1)")  # of (epsilon, delta)
    # with a z: a budget, rounds end before it would be exceeded; z=auto: what all rounds cost; unset: none
    epsilon: float | None = ranged(None, ">= 1e-4", lambda epsilon: epsilon >= 1e-4)
    # U; for Poisson sampling the expected number, q * population
    users_per_round: int = integer(8, most=10**7)
    # a preview: the noise in the mean is that of so many users a round, U of whom are simulated; no guarantee
    noise_cohort: int | None = integer(None, most=10**10)
    # fixed: cohorts of U filled by arrival; poisson: each joins with q; uniform_single_user: one, drawn from
    # exactly `population`; full_batch: all of exactly `population`, in one release. Chosen with `privacy=...`
    sampling: str = "fixed"
    # public number of users: a bound (poisson; fixed: a run that needs more is refused), or exact
    population: int | None = integer(None, most=10**10)
    # zero_out | replace_one (fixed), add_or_remove (poisson of live users; of a dataset's it is zero_out),
    # any_trajectory_pair: trajectories (local)
    adjacency: str = choice("zero_out", ADJACENCIES)
    # pld (exact where it applies) | rdp | gaussian (exact or refused)
    accountant: str = choice("pld", ("pld", "rdp", "gaussian"))
    # seeded: reproducible research; secure: operating-system entropy
    noise: str = choice("seeded", ("seeded", "secure"))
    # correlated: 0 (independent noise) to 1 (the square root of the prefix sum)
    correlation: float = within(0.95, "[0, 1]")
    # correlated: rounds whose noise is correlated, and kept; unset: all that matter
    bands: int | None = integer(None, most=320_000)
    rewards: str = choice("public", ("public", "noised"))  # local: sent exactly | noised

    @property
    def noise_multiplier(self) -> float:
        """Noise std / clip of what is released: `z`, or less in a preview of larger cohorts.

        Raises ConfigError: z is still to be calibrated (`training/plan.py`).
        """
        if self.z is None:
            raise ConfigError("privacy.z", "auto is not calibrated yet; build the run first")
        return self.z / self.preview_scale

    @property
    def preview_scale(self) -> float:
        """`noise_cohort` / U, by which the noise of a preview is smaller; else 1."""
        return (self.noise_cohort or self.users_per_round) / self.users_per_round
