"""Prompts of users: the beginning of one review is one user, used once in a run.

A review has an index, its number in the file. The order of the indices in a run depends on the seed and on
the number of reviews; a review itself determines only whether it is public, and its prompt. Hence one review
does not affect the position of another, see `prompts_of`.
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
from privrl_bench.packs.text.corpus import Corpus

KEY = "env.text.prompts"
IMDB = "hf download stanfordnlp/imdb plain_text/train-00000-of-00001.parquet --repo-type dataset"
FORMS = (
    "a .txt file (one review per line), a .jsonl file (an object with `text` per line), a .parquet "
    "file (a column `text`), or a folder of .txt files (one review each)"
)
_LENGTHS, _ORDER = 11, 12  # names of random streams
_CORPUS_USERS = 1 << 32  # number of the first generated review that no model was trained on


class PromptReview(NamedTuple):
    """A review, its index in the file (`place`), and its identifier; None: it has none."""

    place: int
    text: str
    name: str | None = None

    def public(self, seed: int, holdout: int) -> bool:
        """Whether it is for evaluation: one of `holdout` is, by a hash of its identifier or else its text.

        >>> sum(PromptReview(0, str(i)).public(seed=0, holdout=20) for i in range(10_000))
        501
        """
        what = f"text {self.text}" if self.name is None else f"name {self.name}"
        digest = hashlib.blake2b(what.encode(), digest_size=8, key=str(seed).encode()).digest()
        return int.from_bytes(digest, "big") % holdout == 0


def reviews_of(config: TextConfig) -> Iterator[PromptReview]:
    """Yield reviews in a public order: of the grammar, or of the configured file.

    The order of a file is shuffled, because files are often sorted by label. It is a function of `seed` and
    the number of reviews; the first `reviews` are used.

    Raises:
        ConfigError: No file is configured, it does not exist, or it is none of `FORMS`.
    """
    if config.prompts == MADE:
        corpus = Corpus(config.seed)
        numbers = range(config.reviews or 0)
        return (PromptReview(i, corpus.review(_CORPUS_USERS + i).text, str(i)) for i in numbers)
    if not config.prompts:
        raise ConfigError(
            KEY,
            f"must be the path of the reviews: {FORMS}; for IMDB: {IMDB} --local-dir imdb, then that file",
        )
    found = _read(Path(config.prompts).expanduser())
    # Sort by random keys: NumPy guarantees PCG64's raw numbers across versions, but not its permutations.
    keys = np.random.PCG64(np.random.SeedSequence([config.seed, _ORDER])).random_raw(len(found))
    order = np.argsort(keys, kind="stable")[: config.reviews]
    return (PromptReview(int(i), *found[i]) for i in order)


def _read(path: Path) -> list[tuple[str, str | None]]:
    """Read (text, identifier) of all reviews of a file or folder, in its order."""
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
        raise ConfigError(KEY, f"{path} has no reviews; must be {FORMS}")
    return found


def _text_of(path: Path) -> str:
    """Content with unchanged line ends. Raises ConfigError if it is not UTF-8."""
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
        # JSON can contain lone surrogates, which tokenizers reject.
        found.append((text.encode("utf-8", "replace").decode("utf-8"), _name(record.get("id"))))
    return found


def _name(value: object) -> str | None:
    """An identifier as text; None: no identifier."""
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
    except Exception as error:  # pyarrow's own types
        first = str(error).strip().splitlines()[0]
        raise ConfigError(KEY, f"cannot read {path}: {first}") from None
    return [(text, _name(name)) for text, name in zip(texts, names, strict=True)]


def prompts_of(config: TextConfig, tokenizer: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Return the prompts of users and the prompts for evaluation, in the order of `reviews_of`.

    A prompt is the first n tokens of a review longer than `min_characters`, with n uniform in [low, high),
    determined by `seed` and the index. Every index is a user. An index whose review is public or too short has
    an empty prompt: an invalid user, who contributes nothing.

    Guarantee:
        Let two files with the same number of reviews differ at one index. The order is a function of `seed` and
        the number of reviews, n of `seed` and the index, part and prompt of the review itself. Hence all other
        indices have the same prompt and the same position among users, and every other review is in the same
        part. If the review is private or too short in both files, the public parts are equal and one user
        differs: absent in one (zero-out), or with another prompt (replace-one). A review that becomes public is
        an absent user, too, but is then one of the evaluation prompts, which are not protected.

        A file with one line less has another order, but all reviews stay in the same part. To withdraw a
        review without affecting others, leave its text empty.

    Args:
        config: Of the environment.
        tokenizer: Of the policy.

    Returns:
        (prompts of users, prompts for evaluation), lists of tokens each.

    Raises:
        ConfigError: See `reviews_of`; also if no review is long enough.

    Source:
        TRL's sentiment example (its LengthSampler excludes the upper end).
    """
    low, high = config.prompt_tokens
    reviews = list(reviews_of(config))
    usable = [k for k, review in enumerate(reviews) if len(review.text) > config.min_characters]
    # Words are much shorter than 40 characters, so all kept tokens are before the cut.
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
