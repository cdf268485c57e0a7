"""Public facts of logs: the range of each number, the choices of each word; given, or of the public users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from privrl_bench.errors import ConfigError

_MOST = 1000  # choices
PROPOSED = ", the range of the public users: give it with --ranges"


@dataclass(frozen=True)
class NumberRange:
    """The range of a column of numbers: low <= high, both finite."""

    low: float
    high: float


@dataclass(frozen=True)
class Choices:
    """The allowed values of a column of words or whole numbers, without duplicates."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class PublicRanges:
    """Of observations and actions.

    Attributes:
        known: column -> its range or choices.
        public: they are those of the public users' rows.
    """

    known: dict[str, NumberRange | Choices]
    public: bool = False

    def of(self, name: str) -> NumberRange | Choices:
        """Of a column."""
        return self.known[name]

    def width(self, name: str) -> int:
        """Numbers of a column in an observation."""
        said = self.known[name]
        return len(said.names) if isinstance(said, Choices) else 1

    def choices_of(self, action: Sequence[str]) -> Choices | None:
        """The choices of the action; None: it is numbers."""
        said = [self.known[name] for name in action]
        if not any(isinstance(one, Choices) for one in said):
            return None
        if len(said) > 1:
            name = next(n for n, one in zip(action, said, strict=True) if isinstance(one, Choices))
            raise ConfigError(
                "--act", f"{name} has choices: an action of several columns is numbers"
            )
        (one,) = said
        assert isinstance(one, Choices)
        return one

    def names(self, columns: Sequence[str]) -> list[str]:
        """Names of the numbers of these columns in an observation, `plan=basic` of a choice."""
        found: list[str] = []
        for name in columns:
            said = self.known[name]
            found += (
                [f"{name}={one}" for one in said.names] if isinstance(said, Choices) else [name]
            )
        return found

    def spaces(self, obs: Sequence[str], action: Sequence[str]) -> dict[str, str]:
        """Spaces of observations and actions, as Minari's metadata have them."""
        from gymnasium import spaces
        from minari.serialization import serialize_space

        choices = self.choices_of(action)
        acted = spaces.Discrete(len(choices.names)) if choices else self._box(action)
        return {
            "observation_space": serialize_space(self._box(obs)),
            "action_space": serialize_space(acted),
        }

    def _box(self, names: Sequence[str]) -> Any:
        """The Box of these columns; of a choice from 0 to 1 each."""
        from gymnasium import spaces

        ends: list[tuple[float, float]] = []
        for name in names:
            said = self.known[name]
            one = [(said.low, said.high)] if isinstance(said, NumberRange) else [(0.0, 1.0)]
            ends += one * self.width(name)
        low, high = np.array(ends, np.float32).T
        return spaces.Box(low, high, dtype=np.float32)

    @property
    def source(self) -> str:
        """Where they are from, for messages."""
        return PROPOSED if self.public else ""

    def to_dict(self) -> dict[str, Any]:
        """As in a YAML file."""
        return {
            name: list(one.names)
            if isinstance(one, Choices)
            else {"low": one.low, "high": one.high}
            for name, one in self.known.items()
        }


def read_ranges(source: str | Path | Mapping[str, Any], columns: Sequence[str]) -> PublicRanges:
    """Read ranges and choices, `age: {low: 0, high: 120}` and `dose: [none, low, high]`.

    Args:
        source: a YAML file, or its content.
        columns: of observations and actions, each of which must have an entry.

    Raises:
        ConfigError: on --ranges.
    """
    if isinstance(source, Mapping):
        content: Any = source
    else:
        path = Path(source)
        if not path.is_file():
            raise ConfigError("--ranges", f"there is no file {path}")
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError("--ranges", f"{path} cannot be read: {reason}") from None
    if not isinstance(content, Mapping):
        raise ConfigError("--ranges", "must map columns to {low: , high: } or to a list of choices")
    for name in content:
        if name not in columns:
            given = ", ".join(columns)
            raise ConfigError(
                "--ranges", f"{name!r} is in neither --obs nor --act, which have {given}"
            )
    lacks = [name for name in columns if name not in content]
    if lacks:
        raise ConfigError("--ranges", f"has no entry for {', '.join(lacks)}")
    return PublicRanges({name: _entry(name, content[name]) for name in columns})


def _entry(name: str, value: Any) -> NumberRange | Choices:
    if isinstance(value, Mapping):
        ends = [value.get("low"), value.get("high")]
        if set(value) == {"low", "high"} and all(
            isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
            for x in ends
        ):
            low, high = map(float, ends)  # type: ignore[arg-type]
            if low <= high:
                return NumberRange(low, high)
    elif isinstance(value, list) and 0 < len(value) <= _MOST:
        names = tuple(str(one) for one in value)
        if len(set(names)) == len(names) and all(isinstance(x, str | int) for x in value):
            return Choices(names)
    rule = "must be {low: number, high: number} or a list of different choices"
    raise ConfigError("--ranges", f"{name}: {rule}, got {value!r}")


def proposed(
    values: Mapping[str, np.ndarray],
    words: Mapping[str, list[str]],
    obs: Sequence[str],
    action: Sequence[str],
    rows: np.ndarray,
) -> PublicRanges:
    """Those of the public users' rows.

    Args:
        values: column -> [N] numbers, or codes of words.
        words: of columns that hold words.
        obs: columns of observations.
        action: of actions; one column of whole numbers has choices.
        rows: of the public users.

    Raises:
        ConfigError: a column has too many words.
    """
    known: dict[str, NumberRange | Choices] = {}
    for name in (*obs, *action):
        mine = np.asarray(values[name][rows])
        if name in words:
            known[name] = Choices(tuple(sorted(words[name][k] for k in np.unique(mine))))
        elif tuple(action) == (name,) and (mine == np.round(mine)).all():
            known[name] = Choices(tuple(f"{x:g}" for x in np.unique(mine)))
        else:
            known[name] = NumberRange(float(mine.min()), float(mine.max()))
        said = known[name]
        if isinstance(said, Choices) and len(said.names) > _MOST:
            raise ConfigError("--ranges", f"{name} has {len(said.names)} choices, at most {_MOST}")
    return PublicRanges(known, public=True)
