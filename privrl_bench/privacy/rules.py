"""The rules of a configuration's mechanism and sampling, without torch.

`PrivacyConfig` reads them by `importlib`, as configurations are the lower layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from privrl_bench.privacy import mechanisms, sampling

if TYPE_CHECKING:
    from privrl_bench.config.schema import PrivacyConfig
    from privrl_bench.privacy.mechanisms.mechanism import Mechanism
    from privrl_bench.privacy.sampling.sampler import Sampler


class Rules(NamedTuple):
    """The classes behind `privacy.mechanism` and `privacy.sampling`."""

    mechanism: type[Mechanism]
    sampler: type[Sampler]


def rules(privacy: PrivacyConfig) -> Rules:
    """The classes of a configuration, which has checked the names."""
    return Rules(
        mechanisms.mechanism_class(privacy.mechanism), sampling.sampler_class(privacy.sampling)
    )


def unused(privacy: PrivacyConfig) -> tuple[str, ...]:
    """Keys `privacy.<name>` that only other mechanisms than the chosen one read."""
    own = rules(privacy).mechanism.own
    others = {name for kind in kinds(mechanisms.names()) for name in kind.own} - set(own)
    return tuple(f"privacy.{name}" for name in sorted(others))


def kinds(names: Iterable[str]) -> list[type[Mechanism]]:
    """The classes of these mechanisms."""
    return [mechanisms.mechanism_class(name) for name in names]


def fitting(names: Iterable[str]) -> tuple[str, ...]:
    """These mechanisms, then the others that can be used in place of one of them (`like`)."""
    taken = tuple(names)
    others = [kind for kind in kinds(mechanisms.names()) if kind.name not in taken]
    return (*taken, *(kind.name for kind in others if kind.like in taken))


def samplings(fits: Callable[[type[Sampler]], bool]) -> list[str]:
    """The names of the samplings that fit."""
    return [kind.name for kind in sampling.samplers() if fits(kind)]
