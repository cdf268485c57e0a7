"""Limits that hold for numbers of every section: finite, and not so large that no machine can do it.

What a single key means is checked where it is declared. This is for the others: an infinite step size, or
a count with six zeros too many, which would otherwise end the process long after it was given.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from privrl_bench.errors import ConfigError, require

ANY = 10**12  # for keys that are not below
# Far above what was ever useful, and small enough for the arrays that depend on it.
LARGEST = {
    "rounds": 10**9,
    "privacy.users_per_round": 10**7,
    "privacy.population": 10**10,  # more than there are people
    "env.user_steps": 10**8,
    "env.max_episode_steps": 10**8,
    "env.text.new_tokens": 10**5,
    "env.text.prompt_tokens": 10**5,
    # All are simulated side by side; the standard error of the mean is then 0.3 % of a return's spread.
    "eval.episodes": 10**5,
    "eval.window": 10**6,
    "log.lines": 10**7,
    "algo.hidden": 10**5,
    "algo.epochs": 10**6,
    "algo.critic_features": 10**6,
    "algo.memory": 10**9,
    "hardware.max_replicas": 10**6,
}


def check_finite(prefix: str, section: Any) -> None:
    """Raise `ConfigError` for a number of a section that is infinite or NaN.

    Args:
        prefix: of the section's keys: "", "env.".
        section: a dataclass; sections in it are left out.
    """
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        ok = all(math.isfinite(x) for x in _numbers(value) if isinstance(x, float))
        require(f"{prefix}{field.name}", ok, "finite", value)


def check_sizes(section: Any, prefix: str = "") -> None:
    """Raise `ConfigError` for an integer that is larger than `LARGEST` says, here or in a section below.

    For what users give: the package itself plans runs without an end.
    """
    for field in dataclasses.fields(section):
        key, value = f"{prefix}{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            check_sizes(value, f"{key}.")
        most = LARGEST.get(key, ANY)
        for number in _numbers(value):
            if isinstance(number, int) and abs(number) > most:
                raise ConfigError(key, f"must be at most {most:_}, got {number}")


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
