"""The privacy of a run: mechanism, noise, sampling and accounting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import Section, integer
from privrl_bench.errors import ConfigError, require, require_choice

MECHANISMS = (
    "gaussian",
    "tree",
    "fresh_noise_per_round",
    "per_transition",
    "local",
    "smooth",
    "none",
)
SAMPLINGS = ("fixed", "poisson", "uniform_single_user", "full_batch")


@dataclass
class PrivacyConfig(Section):
    """The mechanism, its noise and its accounting. The gate is built from this alone."""

    prefix: ClassVar[str] = "privacy."

    # gaussian | tree: sums over rounds | fresh_noise_per_round, per_transition: leak | local: on devices
    # | smooth: one release, noise by smooth sensitivity | none
    mechanism: str = "gaussian"
    z: float = 1.0  # noise multiplier = noise std / clip, no unit; 0 adds no noise
    clip: float = 1.0  # L2 bound of one user's contribution, parameter units
    delta: float = 1e-5
    epsilon: float | None = None  # budget: rounds end before it would be exceeded; unset: none
    # U; for Poisson sampling the expected number, q * population
    users_per_round: int = integer(8, most=10**7)
    # fixed: cohorts of U filled by arrival; poisson: each joins with q; uniform_single_user: one, drawn from
    # exactly `population`; full_batch: all of exactly `population`, in one release
    sampling: str = "fixed"
    # public number of users: a bound (poisson; fixed: a run that needs more is refused), or exact
    population: int | None = integer(None, most=10**10)
    # zero_out | replace_one (fixed), add_or_remove (poisson of live users; of a dataset's it is zero_out),
    # any_trajectory_pair: trajectories (local)
    adjacency: str = "zero_out"
    accountant: str = "pld"  # pld (exact where it applies) | rdp | gaussian (exact or refused)
    noise: str = "seeded"  # seeded: reproducible research; secure: operating-system entropy
    rewards: str = "public"  # local: public: told exactly | noised

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("privacy.mechanism", self.mechanism, MECHANISMS)
        if self.mechanism == "per_transition" and self.adjacency != "replace_one":
            raise ConfigError(
                "privacy.adjacency",
                f"noise on transitions is counted under replace_one only, got {self.adjacency!r}",
            )
        require_choice("privacy.sampling", self.sampling, SAMPLINGS)
        require_choice(
            "privacy.adjacency",
            self.adjacency,
            ("zero_out", "replace_one", "add_or_remove", "any_trajectory_pair"),
        )
        require_choice("privacy.rewards", self.rewards, ("public", "noised"))
        require_choice("privacy.accountant", self.accountant, ("pld", "rdp", "gaussian"))
        require_choice("privacy.noise", self.noise, ("seeded", "secure"))
        ok = math.isfinite(self.z) and self.z >= 0
        require("privacy.z", ok, ">= 0 (noise std / clip)", self.z)
        require("privacy.z", self.z == 0 or 1e-6 <= self.z <= 1e6, "0 or in [1e-6, 1e6]", self.z)
        ok = math.isfinite(self.clip) and self.clip > 0
        require("privacy.clip", ok, "> 0 (parameter units)", self.clip)
        require("privacy.clip", 1e-9 <= self.clip <= 1e9, "in [1e-9, 1e9]", self.clip)
        require("privacy.delta", 0 < self.delta < 1, "between 0 and 1", self.delta)
        require("privacy.delta", self.delta >= 1e-100, ">= 1e-100", self.delta)
        ok = self.epsilon is None or 0 < self.epsilon < math.inf
        require("privacy.epsilon", ok, "null or a finite number > 0", self.epsilon)
        require("privacy.epsilon", not ok or (self.epsilon or 1) >= 1e-4, ">= 1e-4", self.epsilon)
        if self.epsilon is not None and self.mechanism in (
            *("none", "fresh_noise_per_round", "per_transition"),
        ):
            raise ConfigError(
                "privacy.epsilon", f"nothing is bounded with privacy.mechanism={self.mechanism}"
            )
        users = self.users_per_round
        if self.sampling == "poisson":
            if self.population is not None and self.population < users:
                raise ConfigError(
                    "privacy.population",
                    "Poisson sampling needs the number of people, at least "
                    f"privacy.users_per_round={users}, got {self.population}",
                )
            if self.accountant != "pld":
                raise ConfigError(
                    "privacy.accountant",
                    f"only pld has an analysis of capped Poisson cohorts, got {self.accountant!r}",
                )
            if self.adjacency not in ("add_or_remove", "zero_out"):
                raise ConfigError(
                    "privacy.adjacency",
                    "Poisson sampling is analysed for add_or_remove and zero_out only, got "
                    f"{self.adjacency!r}",
                )
        elif self.adjacency == "add_or_remove":
            raise ConfigError(
                "privacy.adjacency",
                "cohorts of fixed size have no add_or_remove analysis (removing one user moves "
                "the others); use zero_out or replace_one, or privacy.sampling=poisson",
            )
        if self.sampling == "poisson" and self.mechanism not in ("gaussian", "none"):
            raise ConfigError(
                "privacy.mechanism",
                f"Poisson sampling is analysed for gaussian, got {self.mechanism!r}",
            )
        self._check_drawn()
        self._check_local()

    def _check_drawn(self) -> None:
        """What one of n, and everybody at once, go with. Raises ConfigError."""
        smooth = self.mechanism == "smooth"
        if smooth and self.epsilon is None:
            raise ConfigError(
                "privacy.epsilon", "privacy=smooth makes its noise for it: a number > 0, got null"
            )
        if smooth and self.z != 1:
            raise ConfigError(
                "privacy.z", f"privacy=smooth takes privacy.epsilon, so it stays 1, got {self.z:g}"
            )
        if smooth and self.sampling != "full_batch":
            raise ConfigError(
                "privacy.sampling", f"privacy=smooth is about everybody, got {self.sampling!r}"
            )
        if self.sampling not in ("uniform_single_user", "full_batch"):
            return
        fits = ("gaussian",) if self.sampling == "uniform_single_user" else ("smooth", "none")
        if self.mechanism not in fits:
            raise ConfigError(
                "privacy.mechanism",
                f"{self.sampling} sampling is analysed for {', '.join(fits)}, got {self.mechanism!r}",
            )
        if self.mechanism != "none" and self.adjacency != "replace_one":
            raise ConfigError(
                "privacy.adjacency",
                f"{self.sampling} sampling knows how many people there are: replace_one, got "
                f"{self.adjacency!r}",
            )
        if self.users_per_round != 1:
            raise ConfigError(
                "privacy.users_per_round",
                f"{self.sampling} sampling has none to choose: 1, got {self.users_per_round}",
            )
        if self.sampling == "uniform_single_user" and self.accountant == "gaussian":
            raise ConfigError(
                "privacy.accountant",
                "gaussian is for fixed cohorts; use pld or rdp with uniform_single_user",
            )

    def _check_local(self) -> None:
        """What noise on the users' devices goes with. Raises ConfigError."""
        local = self.mechanism == "local"
        if local != (self.adjacency == "any_trajectory_pair"):
            raise ConfigError(
                "privacy.adjacency",
                "any_trajectory_pair trajectories belong to privacy.mechanism=local and to it alone, got "
                f"{self.adjacency!r} with {self.mechanism!r}; use privacy=local",
            )
        if local and self.accountant == "rdp":
            raise ConfigError("privacy.accountant", "local noise has an exact one: pld or gaussian")
        if not local and self.rewards != "public":
            raise ConfigError("privacy.rewards", "noised is for privacy.mechanism=local only")

    @property
    def pooled(self) -> bool:
        """Whether everybody's data are pooled in one row, which the gate neither clips nor noises."""
        return self.mechanism in ("none", "per_transition", "smooth")

    @property
    def drawn(self) -> bool:
        """Whether who is in a round is drawn by the gate, so that everybody may be in any."""
        return self.sampling != "fixed"
