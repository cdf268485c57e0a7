"""What the runs of a search can cost: a run for each cost, and what an analysis of them covers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.packs.tuning.settings import Search
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Guarantee
from privrl_bench.run.plan import Plan, make_plan

MOST_COMBINATIONS = 64  # of choices that may change what a run costs


def first_setting(search: Search) -> list[str]:
    """Words of one setting."""
    return [f"{one.key}={one.ends[0]}" for one in search.space]


def parts_of(words: Sequence[str]) -> Plan:
    """Build a run of these words. Raises ConfigError."""
    config = compose(words)
    check_hardware(config)
    return make_plan([config])


def runs_of_costs(search: Search, words: Sequence[str]) -> list[Plan]:
    """A run for each cost and set of caveats that settings can lead to.

    All combinations of choices outside `algo`; those of `algo` one key at a time. `covers` finds other ones.

    Raises:
        ConfigError: too many combinations, or they differ in what one user is.
    """
    choices = [one for one in search.space if one.kind == "choice"]
    outside = [one for one in choices if not _of_algo(one.key)]
    count = math.prod(len(one.values) for one in outside)
    if count > MOST_COMBINATIONS:
        keys = ", ".join(one.key for one in outside)
        raise ConfigError(
            outside[0].key,
            f"{count} combinations of {keys}; at most {MOST_COMBINATIONS} are analysed",
        )
    settings = [
        [f"{one.key}={value}" for one, value in zip(outside, values, strict=True)]
        for values in itertools.product(*(one.values for one in outside))
    ]
    settings += [
        [f"{one.key}={value}"] for one in choices if _of_algo(one.key) for value in one.values[1:]
    ]
    found: dict[Any, Plan] = {}
    for own in settings:
        parts = parts_of([*words, *later_wins(first_setting(search), own)])
        found.setdefault((cost_of(parts), frozenset(_caveats(parts))), parts)
        if _unit(parts) != _unit(next(iter(found.values()))):
            raise ConfigError(
                own[0].partition("=")[0],
                f"{' '.join(own)} changes what one user is ({parts.gate.unit.text}); search each alone",
            )
    return list(found.values())


def covers(known: Sequence[Plan], parts: Plan) -> bool:
    """Whether an analysis of `known` is one of this run, too: its cost, unit and caveats."""
    caveats = {name for one in known for name in _caveats(one)}
    costs = [cost_of(one) for one in known]
    same = _unit(parts) == _unit(known[0]) and _caveats(parts) <= caveats
    return same and cost_of(parts) in costs


def _caveats(parts: Plan) -> set[str]:
    return set(parts.gate.guarantee(0).caveats) - {PART_OF_SEARCH}


def _unit(parts: Plan) -> tuple[str, str, str]:
    """What the guarantee is about."""
    found = parts.gate.guarantee(0)
    return found.unit, found.notion, found.adjacency


def _of_algo(key: str) -> bool:
    return key.startswith("algo.")


def cost_of(parts: Plan) -> Any:
    """What a run costs, for comparison: its event and how often one user is in it."""
    return parts.gate.mechanism.planned_releases(0, parts.gate.participation)


def accounts_of(parts: Sequence[Plan]) -> list[Account]:
    """The account of each run."""
    return [one.gate for one in parts]


def largest(parts: Sequence[Plan]) -> Guarantee:
    """The guarantee of any one of these runs: the largest epsilon, the caveats of all."""
    found = [one.gate.guarantee(0) for one in parts]
    caveats = {name: why for one in found for name, why in one.caveats.items()}
    return replace(found[0], epsilon=max(one.epsilon for one in found), caveats=caveats)
