"""Numbers for what a configuration leaves to the program: `privacy.z=auto` and `fit_population`.

Both depend on facts beyond the configuration (steps of an episode, users of a dataset), so they are found
when a run is built. The numbers then stand in the configuration, as if the user had given them: in the run's
identity, its noise, its folder and its plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from privrl_bench.config.identity import group_key
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.calibrate import calibrated_z

if TYPE_CHECKING:
    from privrl_bench.experiment.builder import RunComponents


def resolve(
    configs: list[RunConfig], assemble: Callable[[RunConfig], RunComponents]
) -> list[RunConfig]:
    """The same runs with a number for z, and with the rounds that their population suffices for.

    Args:
        configs: any runs.
        assemble: builds one run that has numbers.

    Raises:
        ConfigError: the run cannot be built, or no z gives its epsilon.
    """
    found: dict[str, tuple[float | None, int | None]] = {}
    made = []
    for config in configs:
        if config.privacy.z is not None and not config.fit_population:
            made.append(config)
            continue
        key = group_key(config)  # equal but for the seed
        if key not in found:
            found[key] = _numbers(config, assemble)
        z, rounds = found[key]
        privacy = replace(config.privacy, z=z)
        made.append(replace(config, privacy=privacy, rounds=rounds, fit_population=False))
    return made


def _numbers(
    config: RunConfig, assemble: Callable[[RunConfig], RunComponents]
) -> tuple[float | None, int | None]:
    """(z, rounds) of a run. Raises ConfigError."""
    target, z, rounds = config.privacy.epsilon, config.privacy.z, config.rounds
    plain = replace(config.privacy, z=1.0 if z is None else z, epsilon=None)
    one = replace(config, privacy=plain)
    parts = assemble(one)
    if config.fit_population:
        asked = config.rounds or config.total_steps // parts.round_steps
        rounds = parts.rounds if parts.rounds < asked else config.rounds
        one = replace(one, rounds=rounds, fit_population=False)
    if z is not None or target is None:
        return z, rounds
    try:
        z = calibrated_z(parts.gate, 0, target)
        # Discrete noise has a cost that depends, very little, on z itself.
        while assemble(replace(one, privacy=replace(plain, z=z))).gate.real_epsilon(0) > target:
            z *= 1.0 + 1e-6
    except PrivacyError as error:
        if _reached(one, assemble, target, "pld"):
            what = f"epsilon {shown_epsilon(target)}"
            rule = f"{plain.accountant} is an upper bound that no noise brings to {what}"
            raise ConfigError("privacy.accountant", f"{rule}; use pld, which reaches it") from error
        raise ConfigError(
            "privacy.epsilon", f"{error} after {parts.rounds} rounds; give another, or privacy.z"
        ) from error
    except ConfigError as error:
        if error.key != "privacy.z":
            raise
        rule = error.problem.partition(", got ")[0]
        why = f"{target:g} at delta {plain.delta:g} takes z = {z:.6g}, which {rule}"
        raise ConfigError("privacy.epsilon", why) from error
    return z, rounds


def _reached(
    config: RunConfig,
    assemble: Callable[[RunConfig], RunComponents],
    target: float,
    accountant: str,
) -> bool:
    """Whether noise leads to an epsilon with another accountant than that of the run."""
    if config.privacy.accountant == accountant:
        return False
    try:
        privacy = replace(config.privacy, accountant=accountant)
        calibrated_z(assemble(replace(config, privacy=privacy)).gate, 0, target)
    except (ConfigError, PrivacyError):
        return False
    return True
