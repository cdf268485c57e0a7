"""The rules of a configuration's mechanism and sampling, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from privrl_bench.config.traits import Draws, Rows
from privrl_bench.errors import ConfigError, require_among, require_choice
from privrl_bench.privacy import mechanisms, sampling
from privrl_bench.privacy.grid import L1

if TYPE_CHECKING:
    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.mechanisms.mechanism import Mechanism
    from privrl_bench.privacy.sampling.sampler import Sampler


class Rules(NamedTuple):
    """The classes behind `privacy.mechanism` and `privacy.sampling`."""

    mechanism: type[Mechanism]
    sampler: type[Sampler]


def rules(privacy: PrivacyConfig) -> Rules:
    """The classes of a configuration whose names are checked."""
    return Rules(
        mechanisms.mechanism_class(privacy.mechanism), sampling.sampler_class(privacy.sampling)
    )


def check(privacy: PrivacyConfig) -> None:
    """Refuse unknown names, and combinations without meaning or analysis.

    What depends on mechanism and sampling is stated there: `Mechanism.validate`, `Sampler.validate`.

    Raises:
        ConfigError: a value or a combination is refused.
    """
    require_choice("privacy.mechanism", privacy.mechanism, mechanisms.names())
    require_choice("privacy.sampling", privacy.sampling, sampling.names())
    mechanism, sampler = rules(privacy)
    sampler.validate(privacy)
    _check_analysed(privacy)
    mechanism.validate(privacy)
    if privacy.noise_cohort is not None:
        _check_preview(privacy)
    if privacy.z is None and not mechanism.calibrated:
        how = f"privacy.mechanism={mechanism.name} has no noise to calibrate"
        raise ConfigError("privacy.z", f"auto has no meaning: {how}")
    if privacy.z is None and privacy.epsilon is None:
        raise ConfigError(
            "privacy.z", "auto needs the epsilon of the whole run, e.g. privacy.epsilon=2"
        )


def _check_analysed(privacy: PrivacyConfig) -> None:
    """Raises ConfigError: the sampling has no analysis with this accountant, adjacency, mechanism or U."""
    mechanism, sampler = rules(privacy)
    who = f"privacy.sampling={sampler.name} is analysed"
    require_among("privacy.accountant", privacy.accountant, sampler.accountants, f"{who} by")
    if mechanism.private:  # else the relation has no meaning
        relations, reason = sampler.adjacencies, sampler.adjacency_reason
        require_among("privacy.adjacency", privacy.adjacency, relations, f"{who} under", reason)
    if not sampler.accepts(mechanism):
        fits = [kind.name for kind in mechanisms.REGISTRY.classes() if sampler.accepts(kind)]
        groups = " (a group sets both, such as privacy=poisson or privacy=fixed)"
        require_among("privacy.mechanism", privacy.mechanism, fits, f"{who} for", groups)
    if sampler.draws in (Draws.ONE, Draws.ALL) and privacy.users_per_round != 1:
        rule = f"privacy.sampling={sampler.name} releases one row: 1"
        raise ConfigError("privacy.users_per_round", f"{rule}, got {privacy.users_per_round}")


def _check_preview(privacy: PrivacyConfig) -> None:
    """Raises ConfigError: `noise_cohort` has no meaning here, or is too small."""
    mechanism, sampler = rules(privacy)
    key, least = "privacy.noise_cohort", f"privacy.users_per_round={privacy.users_per_round}"
    if "noise_cohort" not in mechanism.own or sampler.random:
        rule = "is for privacy.mechanism=gaussian or correlated with privacy.sampling=fixed"
        raise ConfigError(key, f"{rule}, got {mechanism.name} with {privacy.sampling}")
    if (privacy.noise_cohort or 0) < privacy.users_per_round:
        raise ConfigError(key, f"must be at least {least}, got {privacy.noise_cohort}")


def unused(privacy: PrivacyConfig) -> tuple[str, ...]:
    """Keys `privacy.<name>` that only other mechanisms than the chosen one read.

    Those of plugins have no other ones (`mechanisms._check`).
    """
    own = rules(privacy).mechanism.own
    known = mechanisms.REGISTRY.ours.values()
    others = {name for kind in known for name in kind.own} - set(own)
    return tuple(f"privacy.{name}" for name in sorted(others))


def not_auditable(privacy: PrivacyConfig) -> str:
    """Why the canary audit does not apply to the mechanism; empty: it does."""
    kind = rules(privacy).mechanism
    if kind.norm == L1:
        return kind.not_auditable or "canaries are rows in L2 norm, and the mechanism's are in L1"
    return kind.not_auditable


def taking(sends: Iterable[Rows | None]) -> Iterator[type[Mechanism]]:
    """The mechanisms that take one of these, in their order, imitations last.

    None among `sends`: those that take nothing at the gate. Those of plugins are imported when they are
    reached.
    """
    for rows in sends:
        yield from (kind for kind in _in_order() if kind.takes is rows)


def _in_order() -> Iterator[type[Mechanism]]:
    """All mechanisms; the package itself has no imitations."""
    yield from mechanisms.REGISTRY.ours.values()
    outside = map(mechanisms.mechanism_class, mechanisms.REGISTRY.outside)
    yield from sorted(outside, key=lambda kind: kind.imitation)


def drawing(draws: Iterable[Draws]) -> tuple[str, ...]:
    """The names of the samplers that draw in one of these ways, in their order."""
    return tuple(
        kind.name for how in draws for kind in sampling.REGISTRY.classes() if kind.draws is how
    )
