"""What a search draws settings from: `algo.lr=loguniform(1e-3, 1e-2)` and the like."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from privrl_bench.composition.hydra_compose import parse
from privrl_bench.errors import ConfigError

_WORD = re.compile(r"\+{0,2}([\w./]+)=(uniform|loguniform|randint|choice)\((.*)\)")


@dataclass(frozen=True)
class Distribution:
    """The values of one key.

    Attributes:
        key: of the configuration.
        kind: uniform | loguniform | randint | choice.
        low, high: ends of a range, both included by `randint`.
        values: of `choice`, as on the command line.
    """

    key: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()

    def at(self, uniform: float) -> str:
        """The value for a uniform random number in (0, 1], as text.

        >>> Distribution("algo.lr", "loguniform", 1e-3, 1e-1).at(0.5)
        '0.01'
        >>> Distribution("algo.epochs", "randint", 1, 3).at(1.0)
        '3'
        """
        if self.kind == "choice":
            return self.values[min(int(uniform * len(self.values)), len(self.values) - 1)]
        if self.kind == "randint":
            count = int(self.high - self.low) + 1
            return str(int(self.low) + min(int(uniform * count), count - 1))
        if self.kind == "loguniform":
            low, high = math.log(self.low), math.log(self.high)
            return f"{math.exp(low + uniform * (high - low)):.6g}"
        return f"{self.low + uniform * (self.high - self.low):.6g}"

    @property
    def ends(self) -> tuple[str, ...]:
        """All values of a choice, the ends of a range."""
        return self.values or (f"{self.low:.6g}", f"{self.high:.6g}")

    @property
    def text(self) -> str:
        """As on the command line."""
        return f"{self.key}={self.kind}({','.join(self.ends)})"


def split_words(words: Iterable[str]) -> tuple[list[Distribution], list[str]]:
    """Distributions, and the other words.

    Raises:
        ConfigError: a bad range, a key twice, or a grid of values.
    """
    found: dict[str, Distribution] = {}
    others = []
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            others.append(word)
            continue
        one = _distribution(match[1], match[2], _parts(match[3]))
        if one.key in found:
            raise ConfigError(one.key, "is drawn twice; give one distribution")
        found[one.key] = one
    for override in parse(others):
        if override.is_sweep_override():
            key, value = override.get_key_element(), override.get_value_string()
            raise ConfigError(
                key,
                f"{value} is a grid of a sweep; a search draws from choice(...), uniform(low, high), "
                "loguniform(low, high) or randint(low, high); tune.runs=grid takes all values of choice(...)",
            )
    return list(found.values()), others


def _distribution(key: str, kind: str, parts: Sequence[str]) -> Distribution:
    if kind == "choice":
        if len(parts) < 2 or len(set(parts)) < len(parts):
            raise ConfigError(key, f"choice needs at least two different values, got {parts}")
        return Distribution(key, kind, values=tuple(parts))
    try:
        low, high = map(float, parts)
    except ValueError:
        raise ConfigError(key, f"{kind} takes two numbers, got ({', '.join(parts)})") from None
    least = 0.0 if kind == "loguniform" else -math.inf
    if not least < low < high < math.inf:
        rule = "0 < low < high" if kind == "loguniform" else "low < high"
        raise ConfigError(key, f"{kind}(low, high) needs {rule}, got ({', '.join(parts)})")
    if kind == "randint" and (low != int(low) or high != int(high)):
        raise ConfigError(key, f"randint takes integers, got ({', '.join(parts)})")
    return Distribution(key, kind, low, high)


def _parts(text: str) -> list[str]:
    """Split at commas outside brackets.

    >>> _parts("[64, 64], [32],x")
    ['[64,64]', '[32]', 'x']
    """
    parts, depth = [""], 0
    for letter in re.sub(r"\s", "", text):
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def grid(space: Sequence[Distribution]) -> list[list[str]]:
    """Words of every combination of choices. Raises ConfigError: a range has no grid."""
    for one in space:
        if one.kind != "choice":
            raise ConfigError(
                one.key, f"{one.kind} is no grid; write choice(...) or tune.runs=fixed(n)"
            )
    return [
        list(words) for words in product(*([f"{one.key}={v}" for v in one.values] for one in space))
    ]
