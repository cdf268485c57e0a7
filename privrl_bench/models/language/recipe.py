"""How the package's own text models are made, and where they are kept."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from privrl_bench.config.schema import TextConfig
from privrl_bench.models.language.corpus import every_word

CACHE = "PRIVRL_BENCH_CACHE"  # environment variable: the cache folder
END, FIRST, UNKNOWN = "<|endoftext|>", "[CLS]", "[UNK]"
_SOURCES = ("corpus.py", "recipe.py", "pieces.py", "small_models.py")


@dataclass(frozen=True)
class Recipe:
    """Sizes of corpus, models and training.

    Attributes:
        reviews, test_reviews: to learn from, and to measure on.
        positions: longest text, tokens; longer ones are cut.
        width, layers, heads: of the language model.
        judge_width, judge_layers: of the classifier, with as many heads.
        epochs, judge_epochs: passes over the reviews.
        batch: reviews in one step.
        lr: Adam's largest step size; it rises at first and then falls to 0 along a cosine.
    """

    size: str
    seed: int
    reviews: int
    test_reviews: int
    epochs: int
    judge_epochs: int
    positions: int = 64
    width: int = 64
    layers: int = 3
    heads: int = 4
    judge_width: int = 64
    judge_layers: int = 2
    batch: int = 64
    lr: float = 3e-3


def vocabulary() -> dict[str, int]:
    """Token -> number, the same for every recipe: special ones, then the grammar's words.

    A token is a word with the space before it (written as the letter that byte-level tokenizers have for it),
    or without one where a text begins; and a punctuation mark.
    """
    sentences = list(every_word())
    pieces = {f"Ġ{w}" for s in sentences for w in re.findall(r"[A-Za-z]+", s)}
    pieces |= {s.split()[0].strip(".,") for s in sentences} | {".", ","}
    return {piece: i for i, piece in enumerate([END, FIRST, UNKNOWN, *sorted(pieces)])}


def recipe_of(config: TextConfig) -> Recipe:
    """The recipe of `config.size` and `config.seed`."""
    if config.size == "smoke":
        return Recipe(
            *("smoke", config.seed, 400, 100, 1, 1),
            width=32,
            layers=2,
            heads=2,
            judge_width=32,
            judge_layers=1,
            batch=32,
        )
    return Recipe("small", config.seed, 8_000, 1_000, 4, 6)


def versions() -> dict[str, str]:
    """Versions of the packages that shape the result."""
    found = {}
    for name in ("torch", "transformers", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def folder_of(config: TextConfig) -> Path:
    """Where the models of a recipe are, once made: one folder for each recipe, source and set of versions."""
    here = Path(__file__).parent
    source = [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in _SOURCES]
    what = repr((asdict(recipe_of(config)), versions(), source))
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    return cache_root(config) / "text" / f"{config.size}-{digest}"


def cache_root(config: TextConfig) -> Path:
    """`env.text.cache`, or the environment variable, or the user's cache folder."""
    chosen = config.cache or os.environ.get(CACHE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "privrl_bench"
