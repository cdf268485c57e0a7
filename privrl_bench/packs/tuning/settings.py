"""The words of a search: `tune.*`, distributions, and the words of its runs."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from privrl_bench.composition.hydra_compose import parse, section_of
from privrl_bench.config.ranges import Section, integer, ranged, text
from privrl_bench.errors import ConfigError, PrivacyError, suggest
from privrl_bench.packs.tuning.best_of_runs import RunCount

RUNS = "poisson(8), geometric(8), logarithmic(8), negative_binomial(8, 0.5), fixed(8) or grid"
_SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
GRID = "grid"
_SCORES = ("private", "public")
# Words that a score cannot have of its own.
_OF_SEARCH = re.compile(
    r"\+{0,2}(privacy\.(?:z|epsilon|noise|delta)|budget|seed|search|resume|plan_only|hydra)\b"
)
# Words that do not change a search, or are kept apart.
_ASIDE = re.compile(r"\+{0,2}(log|hardware|seed)\b")
# Keys that say what a search is about; they are the same in all of its runs.
COMMON = ("algo", "env", "privacy", "budget", "seed", "search", "resume", "plan_only", "plugins")
_HYDRA = ("hydra.run.dir",)  # keys of Hydra that have an effect on a search
COMMON_KEYS = ("population", "epsilon", "delta", "noise", "accountant", "adjacency", "noise_cohort")
# A key that is drawn: `algo.lr=loguniform(1e-3, 1e-2)` and the like.
_WORD = re.compile(r"\+{0,2}([\w./]+)=(uniform|loguniform|randint|choice)\((.*)\)")


@dataclass
class TuneConfig(Section):
    """Settings of a search."""

    prefix: ClassVar[str] = "tune."

    # number of runs: random and secret, only the best is released | fixed(n), grid: composed, all are covered
    runs: str = "poisson(8)"
    # how a policy is scored. private: noised mean return of private users who did not train it | public:
    # simulated episodes of no user | words of a run that estimates its value on users of the dataset who do not
    # train, e.g. "algo=dp_is privacy.clip=25 data.part=2/2"
    score: str = text("private", 4096)
    # private score: users who play one episode with a policy; null: a tenth of privacy.population, or 100
    score_users: int | None = integer(None, most=10**7)
    # private score: returns are clipped to it; required
    score_range: list[float] | None = ranged(
        None, "[low, high] with low < high", lambda x: len(x) == 2 and x[0] < x[1]
    )
    # private score: noise std of the mean / sensitivity; null: scoring costs a user as much as training
    score_z: float | None = ranged(None, "in [1e-6, 1e6]", lambda z: 1e-6 <= z <= 1e6)
    # share of privacy.population whose users are for the search alone; the rest trains the kept settings; null:
    # all users are in every run, and the best run is kept
    users: float | None = ranged(None, "between 0 and 1", lambda x: 0 < x < 1)
    # words of a public simulator on which settings are searched, e.g. "env.kwargs={length:0.6}"; the best then
    # train on the private users; null: search on private users
    public: str | None = text(None, 4096)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.users is not None and self.public is not None:
            raise ConfigError("tune.public", "and tune.users are two ways of a search; give one")
        if self.score not in _SCORES and not self.score.startswith("algo="):
            raise ConfigError(
                "tune.score",
                "must be private, public, or the words of a run that estimates values, as 'algo=dp_is "
                f"data.part=2/2'; got {self.score!r}{suggest(self.score, _SCORES)}",
            )
        if self.scoring and any((self.score_users, self.score_range)):
            raise ConfigError("tune.score_range", "and tune.score_users are for tune.score=private")
        for word in self.scoring:
            if own := _OF_SEARCH.match(word):
                what = f"{own[1]} is that of the search; tune.score_z is the noise of scores"
                raise ConfigError("tune.score", what)
        if self.public is not None and self.score != "public":
            raise ConfigError("tune.score", "a search on a public simulator has tune.score=public")
        if self.score == "private" and self.score_range is None:
            needs = "tune.score=private needs the range of returns, e.g. [0,500]"
            raise ConfigError("tune.score_range", needs)

    @property
    def scoring(self) -> list[str]:
        """Words of the run that estimates the value of a policy; empty: there is none."""
        return [] if self.score in _SCORES else split("tune.score", self.score)


@dataclass(frozen=True)
class Search:
    """A search as it was asked for.

    Attributes:
        tune: its settings.
        space: what is drawn.
        words: of every run.
        runs: distribution of the number of runs, or the number.
    """

    tune: TuneConfig
    space: list[Distribution]
    words: list[str]
    runs: RunCount | int

    def canonical(self) -> dict[str, Any]:
        """Everything that was asked for, as plain data."""
        return {
            "tune": dataclasses.asdict(self.tune),
            "space": [one.text for one in self.space],
            "words": sorted(word for word in self.words if not _ASIDE.match(word)),
        }


def read_search(words: Sequence[str]) -> Search:
    """Read the words of a search.

    Raises:
        ConfigError: an unknown key or value of `tune`, a bad distribution, or nothing to search.
    """
    for key in (re.split("[=@]", word.lstrip("+~"))[0] for word in words):
        if re.match(r"hydra\b", key) and key not in _HYDRA:
            raise ConfigError(key, "has no effect on a search; its folder is hydra.run.dir")
    own = {word: word.lstrip("+").partition("=") for word in words}
    values = {key: value for key, _, value in own.values() if key.startswith("tune.")}
    space, others = split_words(word for word in words if own[word][0] not in values)
    if not space:
        example = "give a distribution, e.g. 'algo.lr=loguniform(1e-4,1e-2)'"
        raise ConfigError("", f"nothing to search: {example}")
    for one in space:
        section = one.key.partition(".")[0]
        fixed = one.key in (*COMMON, *(f"privacy.{name}" for name in COMMON_KEYS))
        fixed = fixed or one.key.startswith("env.text.")  # they decide who is public
        if fixed or section in ("log", "hardware", "hydra", "data"):
            raise ConfigError(one.key, "is the same in all runs of a search; it cannot be drawn")
    tune = section_of(TuneConfig, values)
    runs = len(grid(space)) if tune.runs == GRID else _runs(tune.runs)
    if tune.public is not None and isinstance(runs, RunCount):
        why = "a search on a public simulator costs nothing"
        raise ConfigError("tune.runs", f"{why}: use fixed(n) or grid")
    return Search(tune, space, others, runs)


def _runs(given: str) -> RunCount | int:
    """The number of runs, from text. Raises ConfigError."""
    match = re.fullmatch(r"(\w+)\(([^()]*)\)", given.replace(" ", ""))
    name = match[1] if match else given
    names = (*_SHAPES, "negative_binomial", "fixed", GRID)
    if match is None or name not in names:
        near = suggest(name, names)
        raise ConfigError("tune.runs", f"must be one of {RUNS}, got {given}{near}")
    try:
        numbers = [float(x) for x in match[2].split(",")]
        if name == "fixed":
            (count,) = numbers
            if not 1 <= count <= 10_000 or count != int(count):
                raise ValueError
            return int(count)
        if name == "negative_binomial":
            mean, shape = numbers
        else:
            (mean,), shape = numbers, _SHAPES[name]
        if not mean <= 500:
            raise ValueError
        return RunCount(mean, shape)
    except (ValueError, PrivacyError):
        rule = "one integer from 1 to 10000" if name == "fixed" else "a mean above 1, at most 500"
        rule += " and a shape >= 0" if name == "negative_binomial" else ""
        raise ConfigError("tune.runs", f"{name} takes {rule}, got {given}") from None


def split(key: str, text: str) -> list[str]:
    """The words in a text. Raises ConfigError: they are not words."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(key, f"{error}") from None


# --- what settings are drawn from


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
            problem = f"{one.kind} is no grid; write choice(...) or tune.runs=fixed(n)"
            raise ConfigError(one.key, problem)
    return [
        list(words) for words in product(*([f"{one.key}={v}" for v in one.values] for one in space))
    ]
