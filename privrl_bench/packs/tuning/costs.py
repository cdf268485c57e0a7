"""What a search costs: epsilon of several private runs, of which the best is released.

`accounting/best_of_runs.py` has the theorems. A fixed number of runs is composed: its epsilon covers the
release of every run, so that later settings may depend on earlier results.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.packs.tuning.settings import Search
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.accounting.best_of_runs import RunCount, profile_epsilon, renyi_epsilon
from privrl_bench.privacy.accounting.calibrate import least_noise
from privrl_bench.privacy.accounting.releases import joint_z
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Guarantee
from privrl_bench.privacy.mechanisms import ledger_class
from privrl_bench.training.plan import Plan, make_plan


def first_setting(search: Search) -> list[str]:
    """Words of one setting."""
    return [f"{one.key}={one.ends[0]}" for one in search.space]


def runs_of_costs(search: Search, words: Sequence[str]) -> list[Plan]:
    """A run for each cost and set of caveats that drawn settings can lead to.

    All combinations of choices outside `algo`; those of `algo` one key at a time. `covers` finds other ones.

    Raises:
        ConfigError: a run cannot be made, or settings differ in what one user is.
    """
    choices = [one for one in search.space if one.kind == "choice"]
    outside = [one for one in choices if not one.key.startswith("algo.")]
    settings = [
        [f"{one.key}={value}" for one, value in zip(outside, values, strict=True)]
        for values in itertools.product(*(one.values for one in outside))
    ]
    settings += [
        [f"{one.key}={value}"] for one in choices if one not in outside for value in one.values[1:]
    ]
    found: dict[Any, Plan] = {}
    for own in settings:
        config = compose([*words, *later_wins(first_setting(search), own)])
        check_hardware(config)
        parts = make_plan([config])
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


def cost_of(parts: Plan) -> Any:
    """What a run costs, for comparison: its event and how often one user is in it."""
    return parts.gate.mechanism.planned_releases(0, parts.gate.participation)


def together(parts: Sequence[Guarantee], **notes: str) -> Guarantee:
    """The guarantee that covers each of several runs, of the same users or of others.

    It has the largest epsilon (users who are in one run only: parallel composition), and the caveats of all.

    Args:
        parts: of the runs; of two notes of one name the first counts.
        **notes: further ones, which replace those of the runs.
    """
    caveats = {name: why for part in parts for name, why in part.caveats.items()}
    known = {name: why for part in reversed(parts) for name, why in part.notes.items()}
    return replace(
        parts[0],
        epsilon=max(part.epsilon for part in parts),
        unit="; or, of other users, ".join(dict.fromkeys(part.unit for part in parts)),
        caveats=caveats,
        notes=known | notes,
    )


def search_epsilon(
    accounts: Sequence[Account], runs: RunCount | int, delta: float, scale: float = 1.0
) -> float:
    """Epsilon of a search over runs that each cost what one of `accounts` says.

    The settings of a run are drawn: a run is a mixture over `accounts`, whose delta at any epsilon is at most
    the largest of theirs. Where none of them is the worst at every delta, Renyi bounds are not used and a
    fixed number of runs is composed at delta / runs each.

    Args:
        accounts: one for each cost that a run can have; rounds that their ledgers repeat are counted.
        runs: the distribution of the number of runs, of which the best is released; or a fixed number, and
            all may be.
        delta: of the search.
        scale: factor of the noise multiplier, for calibration.
    """
    costs = [one.costs(0, scale=scale) for one in accounts]

    def cost(at: float) -> float:
        return max(one(at) for one in costs)

    if not cost(delta) < math.inf:
        return math.inf
    repeated = any(one.ledgers[0].summary()["repeated"] for one in accounts)
    worst = None if repeated else _dominating(accounts)
    if isinstance(runs, int):
        return runs * cost(delta / runs) if worst is None else worst.costs(0, runs, scale)(delta)
    found = profile_epsilon(cost, runs, delta)
    if worst is None or worst.mechanism.slack(0):
        return found  # the Renyi curve of the events has no slack
    event, count = worst.mechanism.planned_releases(0, worst.participation)
    releases = Counter({replace(event, z=event.z * scale): count})
    return min(found, renyi_epsilon(releases, runs, delta, worst.config.accountant))


def _dominating(accounts: Sequence[Account]) -> Account | None:
    """The account that costs most at every delta; None: none is known to.

    Of Gaussian releases the one with the least joint multiplier, and of releases that are alike but for z the
    one with the least z: the others are that with more noise.
    """
    planned = [one.mechanism.planned_releases(0, one.participation) for one in accounts]
    noise = [event.z for event, _ in planned]
    if len({(replace(event, z=1.0), count) for event, count in planned}) > 1:
        parts = [ledger_class(e.mechanism).gaussians(((e, n),)) for e, n in planned]
        if None in parts or len({event.adjacency for event, _ in planned}) > 1:
            return None
        noise = [joint_z([z for z, count in part or () for _ in range(count)]) for part in parts]
    return accounts[noise.index(min(noise))]


def calibrated_search(
    accounts: Sequence[Account], runs: RunCount | int, target: float, delta: float
) -> float:
    """Smallest z, to 6 digits, with which a search costs at most `target`.

    Args:
        accounts: see `search_epsilon`; all with the same z > 0.
        runs: see `search_epsilon`.
        target: epsilon of the search.
        delta: of the search.

    Raises:
        PrivacyError: no z does.
    """
    own = accounts[0].config.noise_multiplier
    if not own:
        raise PrivacyError("z = 0 has no noise to calibrate")
    return least_noise(lambda z: search_epsilon(accounts, runs, delta, z / own), target)


def search_guarantee(
    epsilon: float, delta: float, runs: RunCount | int, parts: Sequence[Guarantee]
) -> Guarantee:
    """The guarantee of everything that a search releases.

    Args:
        epsilon: of `search_epsilon`, the largest over `parts`.
        delta: of the search.
        runs: see `search_epsilon`.
        parts: of the runs about their users, who are the same unit in all; and of the score, about others.
    """
    alone = "epsilon is for this search alone; other runs about the same users compose"
    found = together(parts, runs=alone, search=describe(runs))
    notes = found.notes
    if "scope" in notes:
        notes["scope"] = notes["scope"].replace("not tuning on the same users, ", "")
    return replace(found, epsilon=epsilon, delta=delta)


def describe(runs: RunCount | int) -> str:
    """What a search releases, in words."""
    if isinstance(runs, int):
        return f"{runs} runs, composed: epsilon covers the release of all of them"
    law = "Poisson" if runs.poisson else f"truncated negative binomial, shape {runs.shape:g}"
    return (
        f"the best of a random number of runs ({law}, {runs.mean:g} in the mean) is released; their number, "
        "the settings and results of the others, and the time that the search takes stay secret"
    )
