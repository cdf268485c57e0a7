"""What measured runs say of a planned one: previews of its return.

With cohorts of fixed size, each user in one round, a run is described by its rounds R, its users per round U
and its noise multiplier z. Epsilon follows from z alone. Noise enters training only by its standard deviation
in the mean, z clip / U. So a measured run with (R, U, z) is also a preview of all runs with k U users a round
and multiplier k z, k >= 1 (`privacy.noise_cohort` makes the same preview). It is pessimistic: the mean over
more users also varies less from user to user.

`runs.csv` of the items `<paper>/frontier` and of those with runs of the default values are read (`ITEMS`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from privrl_bench.composition.identity import LATER
from privrl_bench.reporting.nearest import stored_rows

ITEMS = ("frontier", "gap", "small_epsilon")
MOST_NOISE, LEAST_COHORT = 0.05, 16  # of `rounds_by_rule`
# Runs that differ in one of these settings are no preview of the plan.
_SAME = (
    *("privacy.mechanism", "privacy.clip", "env.user_steps"),
    *("algo.user_update", "algo.log_std_init", "algo.metric"),
)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Point:
    """Finished runs that differ in the seed.

    Attributes:
        rounds: R.
        users: U, users of a round that were simulated.
        noise: z / U, the noise standard deviation of the mean in units of the clip.
        values: of the objective, one for each seed.
    """

    rounds: int
    users: int
    noise: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Prediction:
    """What previews say about a run.

    Attributes:
        rounds, users: R and U of the run.
        mean, low, high: of the objective over seeds, between the two nearest measured noises.
        simulated: users of a round in the measured runs, at most `users`.
        seeds: the smaller number of seeds of the two.
    """

    rounds: int
    users: int
    mean: float
    low: float
    high: float
    simulated: int
    seeds: int


def points(algo: str, env: str, settings: Mapping[str, Any], store: Path) -> list[Point]:
    """The measured runs of an algorithm and environment with these settings.

    Args:
        algo: name of the algorithm.
        env: `EnvConfig.label`.
        settings: dotted key -> value of the plan.
        store: results, `<paper>/<item>/runs.csv`.
    """
    found: dict[tuple[int, int, float], dict[str, float]] = {}
    same_step = settings.get("algo.user_update") == "gradient"  # lr has no effect
    keys = _SAME if same_step else (*_SAME, "algo.lr")
    for item, row in stored_rows(store, algo=algo, env=env):
        kept = json.loads(row["settings"])
        same = all(kept.get(key, LATER.get(key)) == settings.get(key) for key in keys)
        if same and row["value"] and item.partition("/")[2] in ITEMS:
            users = int(kept["privacy.users_per_round"])
            key = (int(float(row["rounds"])), users, kept["privacy.z"] / users)
            # A seed counts once, also if two items have its run.
            found.setdefault(key, {})[row["seed"]] = float(row["value"])
    return [Point(*key, tuple(values.values())) for key, values in sorted(found.items())]


def predict(measured: Sequence[Point], users: int, z: float, rounds: int) -> Prediction | None:
    """The return of a run with all of `users` in so many rounds: interpolated in the log of the noise.

    The largest simulated cohorts that were measured with less and with more noise count. Less noise than was
    measured counts as the least that was.

    Returns:
        None where nothing was measured: this number of rounds, cohorts that are not larger, or so much noise.
    """
    each = users // rounds
    cohorts: dict[int, list[Point]] = {}
    for one in sorted(measured, key=lambda one: one.noise):
        if one.rounds == rounds and one.noise > 0 and one.users <= each:
            cohorts.setdefault(one.users, []).append(one)
    if not cohorts:
        return None
    noise = z / each
    around = [of for of, line in cohorts.items() if _within(noise, line)]
    above = [of for of, line in cohorts.items() if line[0].noise > noise]
    if around:
        simulated = max(around)
    elif above:
        simulated = min(above, key=lambda of: (cohorts[of][0].noise, -of))
        noise = cohorts[simulated][0].noise
    else:
        return None
    line = cohorts[simulated]
    more = next(one for one in line if one.noise >= noise * (1 - _ROUNDING))
    less = max(
        (one for one in line if one.noise <= noise * (1 + _ROUNDING)), key=lambda one: one.noise
    )
    share = 0.0
    if more.noise > less.noise:
        share = math.log(noise / less.noise) / math.log(more.noise / less.noise)

    def between(of: Any) -> float:
        return float((1 - share) * of(less.values) + share * of(more.values))

    seeds = min(len(less.values), len(more.values))
    return Prediction(rounds, each, between(fmean), between(min), between(max), simulated, seeds)


def _within(noise: float, line: Sequence[Point]) -> bool:
    return line[0].noise <= noise * (1 + _ROUNDING) and noise * (1 - _ROUNDING) <= line[-1].noise


def best(measured: Sequence[Point], users: int, z: float) -> Prediction | None:
    """The best split of users between cohort size and rounds, among the measured numbers of rounds.

    Of equal means the one with the larger cohorts.
    """
    tried = (predict(measured, users, z, rounds) for rounds in sorted({p.rounds for p in measured}))
    found = [one for one in tried if one is not None]
    return max(found, key=lambda one: (one.mean, one.users), default=None)


def rounds_by_rule(choices: Sequence[int], users: int, z: float, clip: float) -> int:
    """The largest of some numbers of rounds with which the noise in the mean is small; else the least.

    Small: a standard deviation of at most `MOST_NOISE`, z clip rounds / users, in parameter units, from at
    least `LEAST_COHORT` users. Found on the frontiers of CartPole and Acrobot (docs/planning.md), for tasks
    without one.

    >>> rounds_by_rule([36, 73, 146, 292], 10_000, z=3.731, clip=0.4)
    292
    >>> rounds_by_rule([36, 73, 146, 292], 1_000, z=3.731, clip=0.4)
    36
    """
    fits = [
        one
        for one in choices
        if users // one >= LEAST_COHORT and z * clip * one / users <= MOST_NOISE
    ]
    return max(fits, default=min(choices))
