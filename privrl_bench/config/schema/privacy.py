"""The privacy of a run: mechanism, noise, sampling and accounting."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from privrl_bench.config.ranges import Section, integer
from privrl_bench.errors import require, require_choice

ADJACENCIES = ("zero_out", "replace_one", "add_or_remove", "any_trajectory_pair")


@dataclass
class PrivacyConfig(Section):
    """The mechanism, its noise and its accounting. The gate is built from this alone."""

    prefix: ClassVar[str] = "privacy."

    # gaussian | tree: sums over rounds | fresh_noise_per_round, per_transition: leak | local: on devices
    # | smooth: one release, noise by smooth sensitivity | none. A module of privacy/mechanisms each.
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
        self.check()

    def check(self) -> None:
        """Reject values out of range, and combinations without meaning or analysis. Raises `ConfigError`.

        What depends on mechanism and sampling is stated there: `Mechanism.validate`, `Sampler.validate`.
        """
        require_choice("privacy.adjacency", self.adjacency, ADJACENCIES)
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
        privacy_rules().validate(self)

    @property
    def rules(self) -> Any:
        """(mechanism, sampler): the classes behind the two names, with what they declare."""
        return privacy_rules().rules(self)


def privacy_rules() -> Any:
    """`privrl_bench.privacy.rules`, a higher layer that does not import torch."""
    return importlib.import_module("privrl_bench.privacy.rules")
