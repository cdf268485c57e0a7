"""The command `privrl text` (also `privrl-text`): show or make the small text models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privrl_bench.cli.parsing import Parser, given
from privrl_bench.config.schema import TextConfig
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.packs.text import small_models
from privrl_bench.run.crash import guarded

ABOUT = """Show or make the small text models: a language model and a classifier, from a grammar of reviews.

Those of size=small and seed=0 are part of the package. Others go into the cache folder (PRIVRL_BENCH_CACHE; by
default the user's cache). All are in the layout of the Hugging Face hub, with a card that states their quality.
Existing models are shown and not made again. The same recipe on the same machine and number of threads gives
the same models."""
KEYS = ("size", "seed", "cache")


def main(arguments: Sequence[str] | None = None, prog: str = "privrl-text") -> int:
    """Run the command and return its exit code; an interruption leaves no models."""
    return guarded(lambda: _make_and_show(given(arguments), prog))


def _make_and_show(words: Sequence[str], prog: str) -> int:
    parser = Parser(prog, ABOUT)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="key=value",
        help="size=small|smoke (small), seed=<integer> (0), cache=<folder>",
    )
    given = parser.read(words).words
    try:
        folder = small_models.made(parse(given))
    except ConfigError as error:  # of the configuration's key
        raise ConfigError(error.key.removeprefix(TextConfig.prefix), error.problem) from error
    print(small_models.describe(small_models.read_card(folder)))
    print(folder)
    return 0


def parse(words: Sequence[str]) -> TextConfig:
    """Return the configuration of words like `size=smoke`. Raises `ConfigError`."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in KEYS:
            near = suggest(key, KEYS)
            raise ConfigError(key, f"no such key{near}; allowed: {', '.join(KEYS)}")
        if not equals or not value:
            raise ConfigError(key, f"write {key}=<value>")
        if found.get(key, value) != value:
            raise ConfigError(key, f"given twice, as {found[key]} and {value}; give it once")
        found[key] = value
    if "seed" in found:
        if not found["seed"].isdecimal():
            raise ConfigError("seed", f"must be an integer >= 0, got {found['seed']!r}")
        found["seed"] = int(found["seed"])
    return TextConfig(**found)
