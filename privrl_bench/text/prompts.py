"""Whose prompt is which: the beginning of one review is one user, used once in a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.schema import MADE, TextConfig
from privrl_bench.text.corpus import Corpus

KEY = "env.text.prompts"
IMDB = "hf download stanfordnlp/imdb plain_text/train-00000-of-00001.parquet --repo-type dataset"
FORMS = (
    "a .txt file (one review in a line), a .jsonl file (an object with `text` in a line), a .parquet "
    "file (a column `text`), or a folder of .txt files (one review each)"
)
_LENGTHS, _ORDER = 11, 12  # names of random streams
_CORPUS_USERS = 1 << 32  # number of the first made review that no model was trained on


def reviews_of(config: TextConfig) -> Iterator[tuple[int, str]]:
    """(number, review) in a public order: of the grammar, or of the user's file, shuffled by `seed`.

    Raises:
        ConfigError: no file is named, there is none, or it is none of `FORMS`.
    """
    if config.prompts == MADE:
        corpus = Corpus(config.seed)
        numbers = range(config.reviews or 0)
        return ((i, corpus.review(_CORPUS_USERS + i).text) for i in numbers)
    if not config.prompts:
        raise ConfigError(
            KEY,
            f"names the reviews: {FORMS}; for IMDB: {IMDB} --local-dir imdb, then name that file",
        )
    texts = _read(Path(config.prompts).expanduser())
    order = np.random.default_rng([config.seed, _ORDER]).permutation(len(texts))
    return ((int(i), texts[i]) for i in order[: config.reviews])


def _read(path: Path) -> list[str]:
    """All reviews of a file or folder, in its order."""
    if path.is_dir():
        found = [p.read_text(encoding="utf-8") for p in sorted(path.rglob("*.txt"))]
    elif not path.is_file():
        raise ConfigError(KEY, f"no such file or folder: {path}")
    elif path.suffix == ".txt":
        found = path.read_text(encoding="utf-8").splitlines()
    elif path.suffix in (".jsonl", ".json"):
        found = _jsonl(path)
    elif path.suffix == ".parquet":
        found = _parquet(path)
    else:
        raise ConfigError(KEY, f"must be {FORMS}, got {path}")
    if not found:
        raise ConfigError(KEY, f"{path} holds no reviews; must be {FORMS}")
    return found


def _jsonl(path: Path) -> list[str]:
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise ConfigError(KEY, f"{path}, line {number}: not an object with `text`")
            found.append(text)
    return found


def _parquet(path: Path) -> list[str]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(KEY, "a .parquet file needs pyarrow: pip install pyarrow") from None
    try:
        return [
            str(text) for text in parquet.read_table(path, columns=["text"])["text"].to_pylist()
        ]
    except Exception as error:  # of pyarrow's own kinds
        first = str(error).strip().splitlines()[0]
        raise ConfigError(KEY, f"cannot read {path}: {first}") from None


def prompts_of(config: TextConfig, tokenizer: Any) -> tuple[list[list[int]], list[list[int]]]:
    """(users' prompts, prompts for evaluation), each a list of tokens.

    A prompt is the first n tokens of a review longer than `min_characters`, n uniform in
    [low, high) and fixed by `seed` and the review's number. Which review is a user's is decided by its
    number alone, and by its length: which reviews are long enough is taken as public.

    Raises:
        ConfigError: see `reviews_of`; also when no review is long enough.

    Source: TRL's sentiment example (its LengthSampler leaves out the upper end).
    """
    low, high = config.prompt_tokens
    kept = [(i, text) for i, text in reviews_of(config) if len(text) > config.min_characters]
    sizes = [
        int(np.random.default_rng([config.seed, _LENGTHS, i]).integers(low, high)) for i, _ in kept
    ]
    # Words are far shorter than this, so the cut is far behind the tokens that are kept.
    cut = [text[: 40 * high] for _, text in kept]
    tokens = tokenizer(cut, add_special_tokens=False)["input_ids"] if cut else []
    users: list[list[int]] = []
    aside: list[list[int]] = []
    for (i, _), size, row in zip(kept, sizes, tokens, strict=True):
        (aside if i % config.holdout == 0 else users).append(list(row[:size]))
    if not users or not aside:
        raise ConfigError(
            "env.text.min_characters",
            f"{len(kept)} reviews are longer than {config.min_characters} characters; users and "
            "evaluation need one each",
        )
    return users, aside
