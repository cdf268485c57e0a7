"""The metrics that a run may record: name, unit, direction, and who may see them.

`public`: computed from the configuration. `released`: computed from released parameters and simulated
evaluation episodes. `private`: computed from users' data without noise, or from the time that they took.
Private metrics stay in the run folder. They are never sent to W&B (which records times of its own) and are
never part of a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """One declared metric."""

    name: str
    unit: str
    direction: str  # up | down | none: which way is better
    visibility: str  # public | released | private
    meaning: str


_DECLARED = (
    Metric("round", "rounds", "none", "public", "releases made so far"),
    Metric("steps", "steps", "none", "public", "environment steps so far, rounds * U * T"),
    Metric(
        "wall_seconds", "s", "none", "private", "time spent in this run, resumed parts included"
    ),
    Metric("steps_per_second", "steps/s", "up", "private", "steps / wall_seconds"),
    Metric("privacy/epsilon", "", "down", "public", "epsilon spent, recomputed from the ledger"),
    Metric("eval/return_mean", "return", "up", "released", "mean undiscounted return"),
    Metric("eval/return_std", "return", "none", "released", "its standard deviation"),
    Metric("eval/return_ci95", "return", "none", "released", "half width of its 95 % t interval"),
    Metric(
        "eval/return_low", "return", "none", "released", "lower end of its 95 % bootstrap interval"
    ),
    Metric(
        "eval/return_high", "return", "none", "released", "upper end of its 95 % bootstrap interval"
    ),
    Metric("eval/length_mean", "steps", "none", "released", "mean length of evaluation episodes"),
    Metric("eval/episodes", "episodes", "none", "public", "evaluation episodes"),
    Metric(
        "eval/invalid_episodes",
        "episodes",
        "down",
        "released",
        "evaluation episodes with non-finite rewards, observations or actions, which make the "
        "evaluation invalid: the row has no result",
    ),
    Metric("eval/agreement", "share", "up", "released", "actions that are those of public users"),
    Metric("eval/value", "reward", "up", "released", "estimated value of the evaluated policy"),
    Metric("eval/value_low", "reward", "up", "released", "lower end of its 90 % interval"),
    Metric("eval/value_high", "reward", "up", "released", "upper end of its 90 % interval"),
    Metric("eval/value_error", "reward", "down", "released", "its error by noise and chance"),
    Metric("eval/behavior", "reward", "up", "released", "estimated value of the policy that acted"),
    Metric(
        "eval/ratio",
        "ratio",
        "up",
        "released",
        "mean ratio of an episode; 1 if data cover a policy",
    ),
    Metric(
        "eval/clipped", "share", "down", "released", "episodes whose weighted return was clipped"
    ),
    Metric("eval/mspbe", "value^2", "down", "released", "mean squared projected Bellman error"),
    Metric(
        "eval/relative_mspbe",
        "value^2 / reward",
        "down",
        "released",
        "the same over the average reward of the evaluated policy",
    ),
    Metric(
        "eval/kl", "nats", "none", "released", "mean log ratio of an answer, policy to start model"
    ),
    Metric(
        "eval/perplexity", "", "down", "released", "of the policy's answers under the start model"
    ),
    Metric("exact/return", "return", "up", "released", "expected return, by dynamic programming"),
    Metric(
        "exact/regret",
        "return",
        "down",
        "released",
        "sum over rounds of U (the public number of users) times best minus expected return",
    ),
    Metric(
        "release/mean_return", "return", "up", "released", "noised mean return of private users"
    ),
    Metric("release/norm", "parameters", "none", "released", "L2 norm of the released change"),
    Metric("policy/norm", "parameters", "none", "released", "L2 norm of the policy vector"),
    Metric(
        "model/public_loss", "nats", "down", "released", "loss of a learned model on public data"
    ),
    Metric("lr", "", "none", "public", "learning rate of the users' training of this round"),
    Metric(
        "train/return_mean",
        "return",
        "up",
        "private",
        "mean return of episodes that ended in this round (of short users: the early failures)",
    ),
    Metric("train/episodes", "episodes", "none", "private", "episodes that ended in this round"),
    Metric("train/invalid_users", "users", "down", "private", "users with NaN data, rows zeroed"),
    Metric("train/clipped_fraction", "", "none", "private", "share of users at the clip bound"),
    Metric("train/entropy", "nats", "none", "private", "mean policy entropy on users' data"),
    Metric(
        "train/kl", "nats", "none", "private", "mean log ratio of users' answers to the start model"
    ),
    Metric("train/critic_error", "", "down", "private", "unexplained share of return variance"),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}
CLOCK = ("wall_seconds", "steps_per_second")  # not covered by a guarantee

# Fields of summary.json: name -> who may see it. `private` ones are not sent to W&B.
SUMMARY = {
    **dict.fromkeys(("algo", "env", "seed", "z", "measure", "delta", "steps"), "public"),
    **dict.fromkeys(("epsilon", "epsilon_planned", "epsilon_paper"), "public"),
    **dict.fromkeys(("guarantee", "preview", "ledger", "references"), "public"),
    # `released`: what `Algorithm.results` returns; `search`: what `privrl tune` kept, and how
    **dict.fromkeys(
        ("status", "return", "mspbe", "agreement", "value", "released", "solved", "search"),
        "released",
    ),
    **dict.fromkeys(CLOCK, "private"),
}


def check_summary(summary: Mapping[str, object]) -> None:
    """Raise `KeyError` for a field of summary.json that is not declared."""
    unknown = sorted(set(summary) - set(SUMMARY))
    if unknown:
        raise KeyError(f"undeclared fields {unknown}; declare them in privrl_bench/metrics.py")


def check_declared(row: dict[str, float]) -> None:
    """Raise `KeyError` for an undeclared metric."""
    unknown = sorted(set(row) - set(METRICS))
    if unknown:
        raise KeyError(f"undeclared metrics {unknown}; declare them in privrl_bench/metrics.py")


def visible(row: dict[str, float]) -> dict[str, float]:
    """The part of `row` that may leave the machine: everything but private metrics."""
    return {name: value for name, value in row.items() if METRICS[name].visibility != "private"}


KEYS = ("round", "steps")  # of every row


def split(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The public and the private part of a row, each with `KEYS`; undeclared names are private."""
    parts: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, value in row.items():
        private = name not in METRICS or METRICS[name].visibility == "private"
        for part in parts if name in KEYS else (parts[private],):
            part[name] = value
    return parts


def shown_epsilon(epsilon: float, digits: int = 4) -> str:
    """Format epsilon to a few digits, rounded up, so that the printed number is a bound, too.

    Every epsilon is shown by this function. NaN is shown as `-`.

    >>> shown_epsilon(1.00049), shown_epsilon(91.8236), shown_epsilon(math.inf), shown_epsilon(math.nan)
    ('1.001', '91.83', 'inf', '-')
    """
    return _shown(epsilon, digits, math.ceil, 1 - 1e-12)


def again(rounds: int) -> str:
    """Return that so many rounds are released more than once.

    >>> again(1)
    '1 round is released again after an interruption, and every release counts'
    """
    what = "1 round is" if rounds == 1 else f"{rounds} rounds are"
    return f"{what} released again after an interruption, and every release counts"


def shown_measured(epsilon: float, digits: int = 4) -> str:
    """Format an epsilon that an attack has measured, rounded down: it is a lower bound.

    >>> shown_measured(1.00099), shown_measured(0.0)
    ('1', '0')
    """
    return _shown(epsilon, digits, math.floor, 1 + 1e-12)


def _shown(value: float, digits: int, whole: Callable[[float], int], tolerance: float) -> str:
    """Round to `digits`; a value within `tolerance` of a number with as many digits is that number."""
    if math.isnan(value):
        return "-"
    if not 1e-290 < value < math.inf:  # below, the unit of the last digit underflows
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{whole(value / unit * tolerance) * unit:.{digits}g}"
