"""The rules of a configuration's mechanism and sampling, without torch.

`PrivacyConfig` reads them by `importlib`, as configurations are the lower layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from privrl_bench.config.traits import Draws, Rows
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
    known = map(mechanisms.mechanism_class, mechanisms.names())
    others = {name for kind in known for name in kind.own} - set(own)
    return tuple(f"privacy.{name}" for name in sorted(others))


def taking(sends: Iterable[Rows | None]) -> list[type[Mechanism]]:
    """The mechanisms that take one of these, in their order, imitations last.

    None among `sends`: those that take nothing at the gate.
    """
    known = sorted(map(mechanisms.mechanism_class, mechanisms.names()), key=lambda k: k.imitation)
    return [kind for rows in sends for kind in known if kind.takes is rows]


def drawing(draws: Iterable[Draws]) -> tuple[str, ...]:
    """The names of the samplers that draw in one of these ways, in their order."""
    return tuple(kind.name for how in draws for kind in sampling.samplers() if kind.draws is how)
