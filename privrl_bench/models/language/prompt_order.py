"""Whose prompt is which: the beginning of one review is one user, used once in a run.

A review has a place, its number in the file. Where a place comes in a run depends on the seed and on how many
places there are; a review itself decides only whether it is public, and what its prompt is. So one review
moves no other: see `prompts_of`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privrl_bench.config.schema import MADE, TextConfig
from privrl_bench.errors import ConfigError
from privrl_bench.models.language.corpus import Corpus

KEY = "env.text.prompts"
IMDB = "hf download stanfordnlp/imdb plain_text/train-00000-of-00001.parquet --repo-type dataset"
FORMS = (
    "a .txt file (one review in a line), a .jsonl file (an object with `text` in a line), a .parquet "
    "file (a column `text`), or a folder of .txt files (one review each)"
)
_LENGTHS, _ORDER = 11, 12  # names of random streams
_CORPUS_USERS = 1 << 32  # number of the first made review that no model was trained on


class Review(NamedTuple):
    """A review, its place (number in the file), and its identifier: None if it has none."""

    place: int
    text: str
    name: str | None = None

    def public(self, seed: int, holdout: int) -> bool:
        """Whether it is for evaluation: a hash of its identifier, or else of its text; one of `holdout` is.

        >>> sum(Review(0, str(i)).public(seed=0, holdout=20) for i in range(10_000))
        501
        """
        what = f"text {self.text}" if self.name is None else f"name {self.name}"
        digest = hashlib.blake2b(what.encode(), digest_size=8, key=str(seed).encode()).digest()
        return int.from_bytes(digest, "big") % holdout == 0


def reviews_of(config: TextConfig) -> Iterator[Review]:
    """Reviews in a public order: of the grammar, or of the user's file.

    A file's places are shuffled, because files are sorted by label. The order is a function of `seed` and of
    how many there are; `reviews` takes the first ones of it.

    Raises:
        ConfigError: no file is named, there is none, or it is none of `FORMS`.
    """
    if config.prompts == MADE:
        corpus = Corpus(config.seed)
        numbers = range(config.reviews or 0)
        return (Review(i, corpus.review(_CORPUS_USERS + i).text, str(i)) for i in numbers)
    if not config.prompts:
        raise ConfigError(
            KEY,
            f"names the reviews: {FORMS}; for IMDB: {IMDB} --local-dir imdb, then name that file",
        )
    found = _read(Path(config.prompts).expanduser())
    # A place's own number decides where it comes. NumPy promises PCG64's numbers, but not its permutations.
    keys = np.random.PCG64(np.random.SeedSequence([config.seed, _ORDER])).random_raw(len(found))
    order = np.argsort(keys, kind="stable")[: config.reviews]
    return (Review(int(i), *found[i]) for i in order)


def _read(path: Path) -> list[tuple[str, str | None]]:
    """(text, identifier) of all reviews of a file or folder, in its order."""
    found: list[tuple[str, str | None]]
    if path.is_dir():
        files = sorted(path.rglob("*.txt"))
        found = [(_text_of(p), p.relative_to(path).as_posix()) for p in files]
    elif not path.is_file():
        raise ConfigError(KEY, f"no such file or folder: {path}")
    elif path.suffix == ".txt":
        lines = _text_of(path).removesuffix("\n").split("\n")
        found = [(line.removesuffix("\r"), None) for line in lines]
    elif path.suffix in (".jsonl", ".json"):
        found = _jsonl(path)
    elif path.suffix == ".parquet":
        found = _parquet(path)
    else:
        raise ConfigError(KEY, f"must be {FORMS}, got {path}")
    if not any(text for text, _ in found):
        raise ConfigError(KEY, f"{path} holds no reviews; must be {FORMS}")
    return found


def _text_of(path: Path) -> str:
    """With its own line ends. Raises ConfigError: it is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(KEY, f"cannot read {path}: {error}") from None


def _jsonl(path: Path) -> list[tuple[str, str | None]]:
    found = []
    for number, line in enumerate(_text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text = record["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ConfigError(KEY, f"{path}, line {number}: not an object with `text`")
        # JSON can hold half a character, which no tokenizer takes.
        found.append((text.encode("utf-8", "replace").decode("utf-8"), _name(record.get("id"))))
    return found


def _name(value: object) -> str | None:
    """An identifier as text; None: there is none."""
    known = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).encode("utf-8", "replace").decode("utf-8") if known else None


def _parquet(path: Path) -> list[tuple[str, str | None]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(KEY, "a .parquet file needs pyarrow: pip install pyarrow") from None
    try:
        named = "id" in parquet.read_schema(path).names
        table = parquet.read_table(path, columns=["text", "id"] if named else ["text"])
        texts = ["" if text is None else str(text) for text in table["text"].to_pylist()]
        names = table["id"].to_pylist() if named else [None] * len(texts)
    except Exception as error:  # of pyarrow's own kinds
        first = str(error).strip().splitlines()[0]
        raise ConfigError(KEY, f"cannot read {path}: {first}") from None
    return [(text, _name(name)) for text, name in zip(texts, names, strict=True)]


def prompts_of(config: TextConfig, tokenizer: Any) -> tuple[list[list[int]], list[list[int]]]:
    """(users' prompts, prompts for evaluation), each a list of tokens, in the order of `reviews_of`.

    A prompt is the first n tokens of a review longer than `min_characters`, n uniform in
    [low, high) and fixed by `seed` and the place. Every place is a user. A place whose review is public, or too
    short, has an empty prompt: a user who is not valid and contributes nothing.

    Guarantee: let two files of as many reviews differ in one place. The order is a function of `seed` and
    the number of places, n of `seed` and the place, side and prompt of the review itself. So all the
    other places have the same prompt and the same position among users, and every other review is in the same
    part. If the review is private or too short in both files, the public parts are equal and one user differs:
    absent in one (zero-out), or with another prompt (replace-one). A review that becomes public is an absent
    user, too, but the evaluation prompts, which are not protected, then have it.

    A file with one line less has another order, but no review in another part. To withdraw a review
    and move no other, leave its text empty.

    Raises:
        ConfigError: see `reviews_of`; also when no review is long enough.

    Source: TRL's sentiment example (its LengthSampler leaves out the upper end).
    """
    low, high = config.prompt_tokens
    reviews = list(reviews_of(config))
    usable = [k for k, review in enumerate(reviews) if len(review.text) > config.min_characters]
    # Words are far shorter than this, so the cut is far behind the tokens that are kept.
    cut = [reviews[k].text[: 40 * high] for k in usable]
    tokens = tokenizer(cut, add_special_tokens=False)["input_ids"] if cut else []
    users: list[list[int]] = [[] for _ in reviews]
    aside: list[list[int]] = []
    for k, row in zip(usable, tokens, strict=True):
        words = [config.seed, _LENGTHS, reviews[k].place]
        prompt = list(row[: int(np.random.default_rng(words).integers(low, high))])
        if not reviews[k].public(config.seed, config.holdout):
            users[k] = prompt
        elif prompt:
            aside.append(prompt)
    if not any(users) or not aside:
        raise ConfigError(
            "env.text.min_characters",
            f"{len(usable)} reviews are longer than {config.min_characters} characters; users and "
            "evaluation need one each",
        )
    return users, aside
