"""A search: several private runs, of which the best is released. What it draws, and what it costs.

The number of runs, the settings of each and the ties are drawn before the first run, from the source of the
noise: they are as secret as it. `accounting/best_of_runs.py` has the theorems. A fixed number of runs is
composed: its epsilon covers the release of every run, so that later settings may depend on earlier results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.accounting.best_of_runs import RunCount, profile_epsilon, renyi_epsilon
from privrl_bench.privacy.accounting.calibrate import least_noise
from privrl_bench.privacy.accounting.releases import ReleaseEvent, joint_z
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Guarantee, Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.mechanisms import ledger_class
from privrl_bench.privacy.noise import noise_source

_COUNT, _TIES, _SETTINGS, _SEEDS = range(4)


@dataclass(frozen=True)
class SearchDraw:
    """What a search draws.

    Attributes:
        count: K, the number of runs; secret where it is random.
        ties: [K] numbers that order runs of equal scores.
        settings: [K, D] uniform numbers in (0, 1].
        seeds: [K] seeds of the runs.
    """

    count: int
    ties: list[float]
    settings: np.ndarray
    seeds: list[int]


def draw_search(
    kind: str, seed: int, identity: int, runs: RunCount | int, dimensions: int
) -> SearchDraw:
    """Draw a search.

    Args:
        kind: `privacy.noise`.
        seed: of the search.
        identity: a number that stands for everything that was asked for; see `SeededNoise`.
        runs: the distribution of the number of runs, or the number.
        dimensions: D, how many settings are drawn.
    """
    source = noise_source(kind, seed, identity)
    count = runs if isinstance(runs, int) else runs.draw(1.0 - float(source.uniform(1, _COUNT)[0]))
    return SearchDraw(
        count,
        source.uniform(count, _TIES).tolist(),
        source.uniform(count * dimensions, _SETTINGS).reshape(count, dimensions),
        [int(x) for x in np.ceil(source.uniform(count, _SEEDS) * 2**32) - 1],
    )


def announce_runs(path: Path, runs: Mapping[int, tuple[ReleaseEvent, Mapping[str, Any]]]) -> None:
    """Write a line of the search's ledger for every run, on the disk before any of them starts.

    Args:
        path: of the ledger.
        runs: number of each -> what one of its releases is, and public facts of its line.

    Raises:
        ValueError: the ledger is damaged, or has another run of one of these numbers.
    """
    ledger = Ledger(path)
    for number, (event, facts) in runs.items():
        if ledger.intend(number, event, dict(facts), repeatable=True):
            raise ValueError(f"{path.name} has another run {number}, which was drawn otherwise")
    ledger.sync()


def best_of(scores: Sequence[float], ties: Sequence[float]) -> int | None:
    """The run with the largest score; None without runs. NaN is the worst score.

    >>> best_of([1.0, math.nan, 3.0, 3.0], [0.1, 0.9, 0.4, 0.2]), best_of([], [])
    (2, None)
    """
    ranked = [-math.inf if math.isnan(score) else score for score in scores]
    return max(range(len(ranked)), key=lambda i: (ranked[i], ties[i]), default=None)


def score_account(privacy: PrivacyConfig, steps: int) -> Account:
    """The account of one private score: a noised mean return of `privacy.users_per_round` users.

    Args:
        privacy: of the score (`algo=mean_return`).
        steps: most steps of an episode.
    """
    return Account(
        configs=[privacy],
        blocks=(Block("return", 1, privacy.clip),),
        unit=Unit(f"one user who scores a policy: one whole episode of at most {steps} steps", 1),
        rounds=1,
        noises=[noise_source(privacy.noise, 0, 0)],
        ledgers=[Ledger(None)],
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
    first = parts[0]
    caveats = {k: v for part in parts for k, v in part.caveats.items() if k != PART_OF_SEARCH}
    notes = {k: v for part in reversed(parts) for k, v in part.notes.items()}
    notes["runs"] = "epsilon is for this search alone; other runs about the same users compose"
    notes["search"] = describe(runs)
    if "scope" in notes:
        notes["scope"] = notes["scope"].replace("not tuning on the same users, ", "")
    units = list(dict.fromkeys(part.unit for part in parts))
    return replace(
        first,
        epsilon=epsilon,
        delta=delta,
        unit="; or, of other users, ".join(units),
        caveats=caveats,
        notes=notes,
    )


def describe(runs: RunCount | int) -> str:
    """What a search releases, in words."""
    if isinstance(runs, int):
        return f"{runs} runs, composed: epsilon covers the release of all of them"
    law = "Poisson" if runs.poisson else f"truncated negative binomial, shape {runs.shape:g}"
    return (
        f"the best of a random number of runs ({law}, {runs.mean:g} in the mean) is released; their number, "
        "the settings and results of the others, and the time that the search takes stay secret"
    )
