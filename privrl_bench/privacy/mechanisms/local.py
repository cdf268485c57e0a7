"""Local differential privacy: noise on every user's own device (`privacy/devices.py`).

The gate draws the noise of a round; what users send is private already, so that rows are neither clipped
nor noised and everything after the devices is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.mechanisms.mechanism import Mechanism, Terms

if TYPE_CHECKING:
    from privrl_bench.config.schema import EnvConfig, PrivacyConfig
    from privrl_bench.privacy.devices import DeviceNoise
    from privrl_bench.privacy.ledger import Ledger
    from privrl_bench.types import EnvSpec


class Local(Mechanism):
    """Noise on observations, and on rewards if `privacy.rewards=noised`, before they leave a device."""

    name = "local"
    notion = "local"
    adjacencies = ("any_trajectory_pair",)
    accountants = ("pld", "gaussian")
    on_devices = True
    calibrated = True
    not_auditable = (
        "canaries are rows at the gate, and privacy=local has its noise before it; see leaks"
    )
    unrepeatable = "round of noised observations"
    public = ("the ranges and noise scales of env",)

    def __init__(self, terms: Terms):
        super().__init__(terms)
        if terms.devices is None:
            raise PrivacyError("noise on users' devices and mechanism=local go together")
        self._devices: DeviceNoise = terms.devices

    @classmethod
    def notes(cls, privacy: PrivacyConfig) -> dict[str, str]:
        """See `Mechanism.notes`."""
        rewards = "" if privacy.rewards == "noised" else "rewards, "
        return {
            "told exactly": f"{rewards}ends and lengths of episodes; on tasks like CartPole they reveal the "
            "return completely, and much of what epsilon protects can be inferred from them"
        }

    @classmethod
    def unit(cls, env: EnvConfig, privacy: PrivacyConfig, spec: EnvSpec, steps: int) -> Unit | None:
        """What of one user is protected by noise on their device; what they send exactly is given."""
        noised, most, who = privacy.rewards == "noised", spec.max_episode_steps, spec.one_user
        what = "the observations and rewards" if noised else "the observations"
        given = "" if noised else "their rewards and "
        if env.user == "episode":
            return Unit(
                f"{what} of {who}: one trajectory of at most {steps} steps, used once, given {given}when "
                "it ends",
                1,
            )
        if env.user == "fresh":
            return Unit(
                f"{what} of {who}: {steps} steps from a reset, restarts included, used once, given "
                f"{given}when their episodes end",
                1,
            )
        rounds = (most + steps - 2) // steps + 1
        return Unit(
            f"{what} of {who}: one trajectory of at most {most} steps, in up to {rounds} rounds, given "
            f"{given}when it ends",
            rounds,
        )

    @classmethod
    def devices(
        cls, env: EnvConfig, configs: Sequence[PrivacyConfig], spec: EnvSpec, steps: int
    ) -> DeviceNoise | None:
        """See `Mechanism.devices`."""
        from privrl_bench.privacy.devices import DeviceNoise, ranges_of

        return DeviceNoise(
            ranges_of(env, spec.obs_dim, configs[0].rewards == "noised"),
            [config.noise_multiplier for config in configs],
            configs[0].users_per_round,
            steps,
            env.user,
            spec.max_episode_steps,
        )

    def event(self, r: int) -> ReleaseEvent:
        """See `Mechanism.event`: z is 1 / mu of all that a round shows of one unit."""
        return self.recorded(r, "gaussian", 1.0 / self._devices.mu(r))

    def details(self, r: int, round_index: int, ledger: Ledger) -> dict[str, Any]:
        """See `Mechanism.details`."""
        told = {"observations": self._devices.observations, "rewards": self._devices.rewards}
        return {"users": self.terms.configs[r].users_per_round, "told": told}

    def plan_entries(self, r: int) -> dict[str, Any]:
        """The most that the devices show of one unit in a round, and mu: of one observation, of all."""
        devices = self._devices
        return {
            "local": {
                "mu_per_observation": devices.ranges.mu(self.terms.configs[r].noise_multiplier, 1),
                "observations": devices.observations,
                "noised_rewards": devices.rewards,
                "mu": devices.mu(r),
            }
        }

    def describe_noise(self, r: int) -> str:
        """See `Mechanism.describe_noise`."""
        plan = self.plan_entries(r)["local"]
        rewards = f" and {plan['noised_rewards']} rewards" if plan["noised_rewards"] else ""
        return (
            f"on users' devices: mu {plan['mu_per_observation']:.4g} for one observation, "
            f"{plan['mu']:.4g} for the {plan['observations']} observations{rewards} of one user in "
            "a round at most"
        )


MECHANISM = Local
