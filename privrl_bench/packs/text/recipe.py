"""Recipes of the package's small text models, and the folder of the trained models."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from privrl_bench.config.schema import TextConfig
from privrl_bench.packs.text.corpus import every_word

CACHE = "PRIVRL_BENCH_CACHE"  # environment variable: the cache folder
END, FIRST, UNKNOWN = "<|endoftext|>", "[CLS]", "[UNK]"
_SOURCES = (
    *("corpus.py", "recipe.py", "pieces.py"),
    *("small_models.py", "small_model_training.py"),
)


@dataclass(frozen=True)
class Recipe:
    """Sizes of corpus, models and training.

    Attributes:
        size: small | smoke.
        seed: Of corpus and training.
        reviews: For training.
        test_reviews: For testing.
        epochs: Of the language model.
        judge_epochs: Of the classifier.
        positions: Maximum length in tokens; longer texts are truncated.
        width: Of the language model.
        layers: Of the language model.
        heads: Of both models.
        judge_width: Of the classifier.
        judge_layers: Of the classifier.
        batch: Reviews per step.
        lr: Adam's peak step size, after a warm-up and before a cosine decay to 0.
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
    """Return token -> number, equal for all recipes: special tokens, then the grammar's words.

    A token is a word with its leading space (as encoded by byte-level tokenizers), a word without one at the
    start of a text, or a punctuation mark.
    """
    sentences = list(every_word())
    pieces = {f"Ġ{w}" for s in sentences for w in re.findall(r"[A-Za-z]+", s)}
    pieces |= {s.split()[0].strip(".,") for s in sentences} | {".", ","}
    return {piece: i for i, piece in enumerate([END, FIRST, UNKNOWN, *sorted(pieces)])}


def recipe_of(config: TextConfig) -> Recipe:
    """Return the recipe of `config.size` and `config.seed`."""
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
    """Return the versions of the packages that affect the result."""
    found = {}
    for name in ("torch", "transformers", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def folder_of(config: TextConfig) -> Path:
    """Return the folder of other models than the package's, by recipe, source code and package versions."""
    here = Path(__file__).parent
    source = [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in _SOURCES]
    what = repr((asdict(recipe_of(config)), versions(), source))
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    return cache_root(config) / "text" / f"{config.size}-{digest}"


def cache_root(config: TextConfig) -> Path:
    """Return `env.text.cache`, or the environment variable's value, or the user's cache folder."""
    chosen = config.cache or os.environ.get(CACHE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "privrl_bench"
