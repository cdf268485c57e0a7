"""Settings by Optuna's tree-structured Parzen estimator, from the scores of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from privrl_bench.errors import ConfigError
from privrl_bench.packs.tuning.space import Distribution


def suggest_next(
    space: Sequence[Distribution],
    known: Sequence[tuple[list[str], float]],
    seed: int,
) -> list[str]:
    """The settings of the next run.

    Args:
        space: what is drawn.
        known: settings and scores of earlier runs; larger is better, NaN: failed.
        seed: of the sampler.

    Raises:
        ConfigError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "tune.sampler", "tpe needs Optuna: pip install 'privrl_bench[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds = {one.key: _distribution(one) for one in space}
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for words, score in known:
        values = dict(word.split("=", 1) for word in words)
        failed = math.isnan(score)
        study.add_trial(
            optuna.trial.create_trial(
                params={one.key: _value(one, values[one.key]) for one in space},
                distributions=kinds,
                value=None if failed else score,
                state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
            )
        )
    asked = study.ask(kinds)
    return [f"{one.key}={_text(one, asked.params[one.key])}" for one in space]


def _distribution(one: Distribution) -> Any:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if one.kind == "choice":
        return CategoricalDistribution(one.values)
    if one.kind == "randint":
        return IntDistribution(int(one.low), int(one.high))
    return FloatDistribution(one.low, one.high, log=one.kind == "loguniform")


def _value(one: Distribution, text: str) -> Any:
    if one.kind == "choice":
        return text
    if one.kind == "randint":
        return int(text)
    return min(max(float(text), one.low), one.high)


def _text(one: Distribution, value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
