"""What measured runs say of a planned one, for `privrl plan`: previews of its return, and the nearest results.

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

from privrl_bench.config.overrides import conf_dir
from privrl_bench.evaluation.objective import OBJECTIVES
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.run_loader import stored_rows

ITEMS = ("frontier", "gap", "small_epsilon")
MOST_NOISE, LEAST_COHORT = 0.05, 16  # of `rounds_by_rule`
NEAR = 0.05  # of `least_users`
_TRIED_USERS = [k * 10**n for n in range(1, 8) for k in range(10, 100)]  # 100 to 990 million
FEW = 3  # runs; a result of fewer is shown only where there is no other
# Runs that differ in one of these settings are no preview of the plan.
_SAME = (
    *("privacy.mechanism", "privacy.clip", "env.user_steps"),
    *("algo.user_update", "algo.log_std_init"),
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

    def line(self) -> str:
        """The prediction in words.

        >>> Prediction(73, 136, 495.2, 480.0, 500.0, 64, 3).line()
        '73 rounds of 136 users: return about 495.2 (480.0 to 500.0 over 3 seeds of cohorts of 64)'
        """
        which = f"{self.seeds} seed{'s' if self.seeds > 1 else ''} of cohorts of {self.simulated:,}"
        spread = f"{self.low:.1f} to {self.high:.1f} over {which}"
        return f"{self.rounds:,} rounds of {self.users:,} users: return about {self.mean:.1f} ({spread})"


@dataclass(frozen=True)
class Least:
    """The least number of users that is predicted to be enough.

    Attributes:
        users: how many, all rounds together.
        noiseless: mean return over seeds of the measured runs without noise, with the best number of rounds.
        split: what is predicted for them.
    """

    users: int
    noiseless: float
    split: Prediction

    def line(self) -> str:
        """The number in words.

        >>> Least(3600, 500.0, Prediction(73, 49, 485.2, 480.0, 500.0, 16, 3)).line()
        'about 3,600 (73 rounds of 49), for a return within 5 % of 500.0, which runs without noise have'
        """
        split = f"{self.split.rounds:,} rounds of {self.split.users:,}"
        near = f"within {100 * NEAR:g} % of {self.noiseless:.1f}"
        return f"about {self.users:,} ({split}), for a return {near}, which runs without noise have"


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
    for _, row in stored_rows(store, ITEMS, algo=algo, env=env):
        kept = json.loads(row["settings"])
        if row["value"] and all(kept.get(key) == settings.get(key) for key in keys):
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


def least_users(measured: Sequence[Point], z: float) -> Least | None:
    """The least number of users whose best split is predicted to come near the return without noise.

    Numbers of users are tried in steps of two digits. Near: `NEAR` of the return.

    Args:
        measured: the measured runs; those without noise give the return to come near.
        z: noise multiplier.

    Returns:
        None where no run without noise was measured, or no number of users comes near it.
    """
    noiseless = max((fmean(one.values) for one in measured if one.noise == 0), default=None)
    if noiseless is None:
        return None
    for users in _TRIED_USERS:
        found = best(measured, users, z)
        if found is not None and found.mean >= noiseless - NEAR * abs(noiseless):
            return Least(users, noiseless, found)
    return None


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


# --- the nearest results


@dataclass(frozen=True)
class Measured:
    """Finished runs of one setting, which differ in the seed.

    Attributes:
        item: `<paper>/<item>`, the folder in the store.
        words: of the command line, without the seed.
        runs: number of runs.
        objective: name of what they are judged by.
        mean, low, high: over the runs.
        epsilon, delta, adjacency: of their guarantee, which is formal.
    """

    item: str
    env: str
    words: str
    runs: int
    objective: str
    mean: float
    low: float
    high: float
    epsilon: float
    delta: float
    adjacency: str

    def line(self) -> str:
        """The result in one line.

        >>> Measured("dppg/fig2", "cartpole", "algo=dppg privacy.z=3", 10, "return", 500.0, 480.0, 500.0, 1.27,
        ...          1e-5, "zero-out").line()
        'cartpole, 10 seeds, epsilon 1.27 (zero-out, delta 1e-05): mean return 500.0 (480.0 to 500.0)'
        """
        known = OBJECTIVES.get(self.objective)
        mean, low, high = (
            known.show(x) if known else f"{x:.4g}" for x in (self.mean, self.low, self.high)
        )
        seeds = f"{self.runs} seed{'s' if self.runs > 1 else ''}"
        which = f"epsilon {shown_epsilon(self.epsilon)} ({self.adjacency}, delta {self.delta:g})"
        spread = f" ({low} to {high})" if self.runs > 1 else ""
        return f"{self.env}, {seeds}, {which}: mean {self.objective} {mean}{spread}"


def store() -> Path | None:
    """The committed results, which a source tree has and an installed wheel has not."""
    folder = conf_dir().parent / "outputs" / "paper"
    return folder if folder.is_dir() else None


def nearest(
    algo: str,
    env: str,
    epsilons: Mapping[str, float],
    settings: Mapping[str, Any],
    folder: Path,
    most: int = 3,
) -> list[Measured]:
    """Results with a formal guarantee of the same algorithm and environment, the nearest epsilon first.

    Among epsilons that are within 5 % of each other, settings that agree with the plan come first.

    Args:
        algo: name of the algorithm.
        env: `EnvConfig.label`.
        epsilons: adjacency (zero_out, ..) -> epsilon of the plan, its own first.
        settings: dotted key -> value of the plan.
        folder: the store.
        most: number of results.
    """
    own = next(iter(epsilons.values()))
    ranked: list[tuple[tuple[float, ...], str, Measured]] = []
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for item, row in stored_rows(folder, ["*"], algo=algo, env=env, status="formal"):
        groups.setdefault((item, row["overrides"], row["settings"]), []).append(row)
    for (item, *_), rows in groups.items():
        one = _measured(item, rows)
        if one is None:
            continue
        planned = epsilons.get(one.adjacency.replace("-", "_"), own)
        if not 0.0 < planned < math.inf:
            continue
        distance = abs(math.log(one.epsilon / planned))
        kept = json.loads(rows[0]["settings"])
        other = sum(settings.get(key) != value for key, value in kept.items())
        rank = (one.runs < FEW, round(distance / 0.05), other, -one.runs, distance)
        ranked.append((rank, item, one))
    ranked.sort(key=lambda entry: entry[:2])
    found: dict[tuple[str, float], Measured] = {}
    for _, _, one in ranked:  # a run may be in several items
        found.setdefault((one.words, one.mean), one)
    return list(found.values())[:most]


def _measured(item: str, rows: list[dict[str, str]]) -> Measured | None:
    """The runs of one setting; None: no result."""
    values = [float(row["value"]) for row in rows if row["value"]]
    first = rows[0]
    if not values or not first["epsilon"] or not 0.0 < float(first["epsilon"]) < math.inf:
        return None
    return Measured(
        item=item,
        env=first["env"],
        words=first["overrides"],
        runs=len(values),
        objective=first["objective"],
        mean=fmean(values),
        low=min(values),
        high=max(values),
        epsilon=float(first["epsilon"]),
        delta=float(first["delta"] or "nan"),
        adjacency=first["adjacency"],
    )
