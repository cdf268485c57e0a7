"""Errors that a user can act on, and the helper that suggests the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ConfigError(ValueError):
    """A setting is wrong. `str(error)` is one line: the key, what is wrong, what is allowed."""

    def __init__(self, key: str, problem: str):
        self.key = key
        self.problem = problem
        super().__init__(f"{key}: {problem}" if key else problem)


class PrivacyError(RuntimeError):
    """Code tried to move private data past the gate, or to use a contribution twice."""


class EnvironmentFailure(RuntimeError):
    """The user's environment raised an error; carries its message."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def suggest(name: str, allowed: Iterable[str], cutoff: float = 0.65) -> str:
    """Return ` (did you mean X?)`, or an empty string when nothing is near.

    Of similar names it is the one with the fewest typing errors; two letters in the wrong order are one.

    Args:
        name: what was given.
        allowed: what is known.
        cutoff: similarity from 0 to 1 (`difflib`) that a suggestion needs.

    >>> suggest("hoper", ["hopper", "cartpole"]), suggest("plna", ["play", "plan"])
    (' (did you mean hopper?)', ' (did you mean plan?)')
    """
    similar = difflib.get_close_matches(name, list(allowed), n=8, cutoff=cutoff)
    near = min(similar, key=lambda one: typing_errors(name, one), default=None)
    return f" (did you mean {near}?)" if near is not None else ""


def typing_errors(one: str, other: str) -> int:
    """Least number of letters to add, to remove, to change, or to exchange with the next one.

    >>> typing_errors("plna", "plan"), typing_errors("plna", "play")
    (1, 2)
    """
    rows = [list(range(len(other) + 1))]
    for i, a in enumerate(one, start=1):
        row = [i]
        for j, b in enumerate(other, start=1):
            least = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and (a, b) == (other[j - 2], one[i - 2]):
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


def require_choice(key: str, value: str, allowed: Iterable[str]) -> None:
    """Raise `ConfigError` unless `value` is one of `allowed`."""
    options = list(allowed)
    if value not in options:
        raise ConfigError(
            key,
            f"must be one of {', '.join(options)}, got {value!r}{suggest(str(value), options)}",
        )


def require_among(key: str, value: str, allowed: Iterable[str], who: str, reason: str = "") -> None:
    """Raise `ConfigError` with what `who` takes unless `value` is one of `allowed`.

    Args:
        key: of the setting.
        value: what was given.
        allowed: what `who` takes.
        who: subject and verb of the message, e.g. "algo=ppo takes".
        reason: added after the allowed values.
    """
    options = list(allowed)
    if value not in options:
        raise ConfigError(key, f"{who} {', '.join(options)}{reason}, got {value!r}")


def no_run(key: str, path: Path) -> ConfigError:
    """The error of a path that is no run folder; it names one that is below."""
    if not path.exists():
        return ConfigError(key, f"there is no {path}; name a run folder")
    below = sorted(path.rglob("status.json"))
    more = f"; it has {len(below)}, e.g. {below[0].parent}" if below else ""
    return ConfigError(key, f"{path} is not a run folder{more}")


def refuse(when: bool, key: str, problem: str) -> None:
    """Raise `ConfigError` if `when`."""
    if when:
        raise ConfigError(key, problem)


def require(key: str, ok: bool, rule: str, value: object) -> None:
    """Raise `ConfigError` with the rule and the value unless `ok`."""
    if not ok:
        raise ConfigError(key, f"must be {rule}, got {'null' if value is None else value}")
