"""Errors that a user can act on, and the helper that suggests the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def suggest(name: str, allowed: Iterable[str], cutoff: float = 0.65) -> str:
    """Return ` (did you mean X?)`, or an empty string when nothing is near.

    Args:
        name: what was given.
        allowed: what is known.
        cutoff: similarity from 0 to 1 (`difflib`) that a suggestion needs.

    >>> suggest("hoper", ["hopper", "cartpole"])
    ' (did you mean hopper?)'
    """
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=cutoff)
    return f" (did you mean {near[0]}?)" if near else ""


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


def require(key: str, ok: bool, rule: str, value: object) -> None:
    """Raise `ConfigError` with the rule and the value unless `ok`."""
    if not ok:
        raise ConfigError(key, f"must be {rule}, got {'null' if value is None else value}")
