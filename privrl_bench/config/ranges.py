"""Ranges of settings: a field declares its own, and one function checks a whole section.

    @dataclass
    class MyConfig(AlgoConfig):
        lr: float = positive(3e-4)
        epochs: int = integer(8)
        critic: str = choice("private", ("private", "shared", "none"))

Every float must be finite, whether its field declares a range or not. None is accepted where the type of the
field says so.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privrl_bench.errors import require, require_choice

LARGEST = 10**12  # of an integer whose field declares no other
# A function where a registry has the names: plugins add some later, and it may be in a higher layer.
Names = tuple[str, ...] | Callable[[], tuple[str, ...]]


@dataclass(frozen=True)
class Range:
    """What one field may hold."""

    rule: str  # follows "must be"
    holds: Callable[[Any], bool]  # of a value that is not None
    names: Names = ()  # of a choice, in place of `holds`
    most: int = LARGEST  # for `check_sizes`
    null: str = "null"  # what the command line calls None

    @property
    def options(self) -> tuple[str, ...]:
        """What a choice may be; empty: it is no choice."""
        return self.names() if callable(self.names) else self.names


@dataclass
class Section:
    """A section of the configuration. Checks its ranges when it is made."""

    prefix: ClassVar[str] = ""  # of its keys, e.g. "env."

    def __post_init__(self) -> None:
        """Raises `ConfigError`: a value is outside its field's range."""
        for one in dataclasses.fields(self):
            _check(f"{self.prefix}{one.name}", one, getattr(self, one.name))


def _check(key: str, one: dataclasses.Field[Any], value: Any) -> None:
    finite = all(math.isfinite(x) for x in _numbers(value) if isinstance(x, float))
    require(key, finite, "finite", value)
    declared: Range | None = one.metadata.get("range")
    if declared is None:
        return
    if declared.options:
        return require_choice(key, value, declared.options)
    nullable = re.search("None|Optional", str(one.type)) is not None
    rule = f"{declared.null} or {declared.rule}" if nullable else declared.rule
    ok = nullable if value is None else declared.holds(value)
    require(key, ok, rule, repr(value) if isinstance(value, str) else value)


def check_sizes(section: Any, prefix: str = "") -> None:
    """Check that no integer of a section, or of a section in it, is too large for any machine.

    For what users give: the package itself plans runs without an end.

    Raises:
        ConfigError: an integer is larger than the `most` of its field.
    """
    for one in dataclasses.fields(section):
        key, value = f"{prefix}{one.name}", getattr(section, one.name)
        if dataclasses.is_dataclass(value):
            check_sizes(value, f"{key}.")
        most = one.metadata["range"].most if "range" in one.metadata else LARGEST
        for number in _numbers(value):
            ok = isinstance(number, float) or abs(number) <= most
            require(key, ok, f"at most {most:_}", number)


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


# --- declarations; each returns a dataclass field


def ranged(
    default: Any, rule: str, holds: Callable[[Any], bool], most: int = LARGEST, null: str = "null"
) -> Any:
    """A field with any range.

    Args:
        default: a list is copied for every instance.
        rule: the range in words that follow "must be".
        holds: whether a value, never None, is in it.
        most: the largest integer that a user may give.
        null: what the command line calls None.
    """
    return _field(default, Range(rule, holds, most=most, null=null))


def _field(default: Any, declared: Range) -> Any:
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"range": declared})
    return field(default=default, metadata={"range": declared})


def positive(default: float | None) -> Any:
    """A number > 0."""
    return ranged(default, "> 0", lambda x: x > 0)


def nonnegative(default: float | None) -> Any:
    """A number >= 0."""
    return ranged(default, ">= 0", lambda x: x >= 0)


def within(default: float, interval: str) -> Any:
    """A number in an interval, e.g. `(0, 1]`."""
    low, high = map(float, interval[1:-1].split(","))
    return ranged(
        default,
        f"in {interval}",
        lambda x: (
            (low <= x if interval[0] == "[" else low < x)
            and (x <= high if interval[-1] == "]" else x < high)
        ),
    )


def integer(default: int | None, least: int = 1, most: int = LARGEST) -> Any:
    """An integer >= `least`; `most` is the largest that a user may give."""
    return ranged(default, f"an integer >= {least}", lambda x: x >= least, most)


def random_seed(default: int = 0) -> Any:
    """The seed of a random stream."""
    return ranged(default, "between 0 and 2^32 - 1", lambda x: 0 <= x < 2**32)


def choice(default: str, names: Names) -> Any:
    """One of some names."""
    return _field(default, Range("", lambda _: True, names))


def widths(default: list[int], empty: bool = False) -> Any:
    """Widths of a network's hidden layers; `empty`: there may be none, which makes it linear."""
    rule = "a list of layer widths >= 1" + (" (empty: linear)" if empty else "")
    return ranged(default, rule, lambda x: (empty or x) and all(h >= 1 for h in x), 10**5)


def numbers(default: list[float] | None, rule: str, holds: Callable[[float], bool]) -> Any:
    """A list of numbers, each of which is in a range, e.g. `> 0`."""
    return ranged(default, f"a list of numbers {rule}", lambda x: len(x) > 0 and all(map(holds, x)))


def text(default: str | None, most: int) -> Any:
    """Text of 1 to `most` characters."""
    return ranged(default, f"1 to {most} characters", lambda x: 1 <= len(x) <= most)
