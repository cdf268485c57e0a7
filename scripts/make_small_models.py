"""Train the text models that are part of the package, a language model and a classifier of generated reviews.

    python scripts/make_small_models.py privrl_bench/packs/text/small

Takes about 90 s of CPU time, on one thread. Other machines and versions give other weights, and the results of
env=sentiment_small change with them, so the files are made again only together with those results.

The language model predicts the next token. The classifier scores truncated beginnings of reviews, so it is
trained on those; and on pieces of two reviews, so that its logit increases with every positive sentence, not
only with the first.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

from privrl_bench.kernels.machine import one_thread
from privrl_bench.packs.text.corpus import (
    FORMS,
    KIND_ENDS,
    OPENINGS,
    PLAIN,
    UNKIND_ENDS,
    WORDS,
    Corpus,
    Review,
    fill,
)
from privrl_bench.packs.text.models import Scorer, digests
from privrl_bench.training.folder import write_json
from privrl_bench.types import generator

END, FIRST, UNKNOWN = "<|endoftext|>", "[CLS]", "[UNK]"
SURE = 5e-4  # label smoothing, which bounds the logits as in real classifiers
_LANGUAGE, _JUDGE = 1, 2  # names of random streams


@dataclass(frozen=True)
class Recipe:
    """Sizes of corpus, models and training.

    Attributes:
        size: Name.
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

    size: str = "small"
    seed: int = 0
    reviews: int = 8_000
    test_reviews: int = 1_000
    epochs: int = 4
    judge_epochs: int = 6
    positions: int = 64
    width: int = 64
    layers: int = 3
    heads: int = 4
    judge_width: int = 64
    judge_layers: int = 2
    batch: int = 64
    lr: float = 3e-3


# --- the vocabulary


def every_word() -> Iterator[str]:
    """Yield sentences that contain every word of the grammar in every form of its use."""
    for form in (
        *OPENINGS,
        *PLAIN,
        *KIND_ENDS,
        *UNKIND_ENDS,
        *(f for group in FORMS.values() for f in group),
    ):
        for k in range(max(len(words) for words in WORDS.values())):
            yield fill(form, lambda words, k=k: words[k % len(words)])  # type: ignore[misc]


def vocabulary() -> dict[str, int]:
    """Return token -> number: special tokens, then the grammar's words.

    A token is a word with its leading space (as encoded by byte-level tokenizers), a word without one at the
    start of a text, or a punctuation mark.
    """
    sentences = list(every_word())
    pieces = {f"Ġ{w}" for s in sentences for w in re.findall(r"[A-Za-z]+", s)}
    pieces |= {s.split()[0].strip(".,") for s in sentences} | {".", ","}
    return {piece: i for i, piece in enumerate([END, FIRST, UNKNOWN, *sorted(pieces)])}


# --- pieces of reviews


def pieces(corpus: Corpus, numbers: Sequence[int], seed: int) -> list[tuple[str, float]]:
    """Return (text, target in [SURE, 1 - SURE]) of one piece of each of the reviews `numbers`."""
    draw = random.Random(f"{seed}/pieces/{numbers[0]}/{len(numbers)}")
    found = []
    for number in numbers:
        review = corpus.review(number)
        text, opinions = _piece(review, draw)
        if draw.random() < 0.15:
            other, more = _piece(corpus.review(draw.choice(numbers)), draw)
            text, opinions = f"{text} {other}", opinions + more
        target = sum(opinions) / len(opinions) if opinions else 0.5
        found.append((text, min(max(target, SURE), 1 - SURE)))
    return found


def _piece(review: Review, draw: random.Random) -> tuple[str, list[float]]:
    """Consecutive sentences, the last one often truncated, and their opinions."""
    count = len(review.sentences)
    first = 0 if draw.random() < 0.7 else draw.randrange(count)
    last = draw.randrange(first, count)
    words = review.sentences[last].split(" ")
    kept = len(words) if draw.random() < 0.4 else draw.randint(1, len(words))
    text = " ".join([*review.sentences[first:last], *words[:kept]])
    # A sentence's last words carry its opinion; a sentence truncated before them has none.
    ends = last + 1 if kept >= len(words) - 1 else last
    return text, [opinion for opinion in review.opinions[first:ends] if opinion is not None]


# --- training


def encode(tokenizer: Any, texts: Sequence[str], end: str = "") -> list[list[int]]:
    """Tokenise texts, each followed by `end`."""
    rows: list[list[int]] = tokenizer([text + end for text in texts])["input_ids"]
    return rows


def train_language_model(model: Any, rows: list[list[int]], recipe: Recipe) -> None:
    """Train next-token prediction on tokenised texts, in place."""

    def loss(ids: Tensor, mask: Tensor, _: list[int]) -> Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # causal: padding is behind
        each = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none"
        ).view(ids.shape[0], -1)
        return (each * mask[:, 1:]).sum() / mask[:, 1:].sum()

    stream = (recipe.seed, _LANGUAGE)
    _train(model, loss, rows, recipe.epochs, recipe, stream)


def train_classifier(judge: Any, tokenizer: Any, corpus: Corpus, recipe: Recipe) -> None:
    """Train the classifier in place on each piece's share of positive sentences, new pieces every epoch."""
    found = [
        piece
        for epoch in range(recipe.judge_epochs)
        for piece in pieces(corpus, range(recipe.reviews), recipe.seed + epoch)
    ]
    rows = [row[: recipe.positions] for row in encode(tokenizer, [text for text, _ in found])]
    targets = torch.tensor([target for _, target in found])

    def loss(ids: Tensor, mask: Tensor, members: list[int]) -> Tensor:
        kind = targets[members]
        logits = judge(input_ids=ids, attention_mask=mask.long()).logits
        return torch.nn.functional.cross_entropy(logits, torch.stack([1 - kind, kind], -1))

    stream = (recipe.seed, _JUDGE)
    _train(judge, loss, rows, 1, recipe, stream)


def _train(
    model: Any,
    loss: Callable[[Tensor, Tensor, list[int]], Tensor],
    rows: list[list[int]],
    epochs: int,
    recipe: Recipe,
    stream: tuple[int, int],
) -> None:
    """Run AdamW over batches of rows of similar length; `loss` takes tokens [B, S], mask and row numbers."""
    draws = generator(*stream)
    batches = [b for _ in range(epochs) for b in _batches(rows, recipe.batch, draws)]
    adam = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=0.01)
    warm = max(1, len(batches) // 20)

    def height(step: int) -> float:
        return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / len(batches)))

    schedule = torch.optim.lr_scheduler.LambdaLR(adam, height)
    model.train()
    for members in batches:
        longest = max(len(rows[i]) for i in members)
        ids = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in members])
        mask = torch.arange(longest) < torch.tensor([len(rows[i]) for i in members])[:, None]
        adam.zero_grad()
        loss(ids, mask, members).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        schedule.step()
    model.eval()


def _batches(rows: list[list[int]], size: int, draws: torch.Generator) -> list[list[int]]:
    """Batches of all row numbers in random order, sorted by length within groups of 20 batches."""
    order = torch.randperm(len(rows), generator=draws).tolist()
    chunk = 20 * size
    found = []
    for at in range(0, len(order), chunk):
        alike = sorted(order[at : at + chunk], key=lambda i: len(rows[i]))
        found += [alike[i : i + size] for i in range(0, len(alike), size)]
    return [found[i] for i in torch.randperm(len(found), generator=draws).tolist()]


# --- both models


def make(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Make all models in `folder` and return the card, which is not written."""
    wall, cpu = time.perf_counter(), time.process_time()
    corpus = Corpus(recipe.seed)
    numbers = range(recipe.reviews + recipe.test_reviews)
    texts = [corpus.review(i).text for i in numbers]
    known, unknown = texts[: recipe.reviews], texts[recipe.reviews :]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # initial weights
        tokenizer = make_tokenizer()
        model = _language_model(recipe)
        rows = [row[: recipe.positions] for row in encode(tokenizer, known, END)]
        train_language_model(model, rows, recipe)
        judge, judge_tokenizer = _classifier(recipe), with_first(tokenizer)
        train_classifier(judge, judge_tokenizer, corpus, recipe)
    model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    judge.save_pretrained(folder / "classifier")
    judge_tokenizer.save_pretrained(folder / "classifier")
    tested = [row[: recipe.positions] for row in encode(tokenizer, unknown, END)]
    clear = [r for r in map(corpus.review, numbers[recipe.reviews :]) if r.opinion != 0.5]
    scores = Scorer(judge, judge_tokenizer, recipe.positions)([r.text for r in clear])
    kind = torch.tensor([r.opinion == 1.0 for r in clear])
    rows = [row[: recipe.positions] for row in encode(judge_tokenizer, [r.text for r in clear])]
    with torch.no_grad():
        logits = torch.cat([judge(input_ids=torch.tensor([row])).logits for row in rows])
    return {
        "what": "a language model and a sentiment classifier of generated film reviews",
        "recipe": asdict(recipe),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "vocabulary": len(vocabulary()),
        "files": digests(folder),
        "test": {
            "reviews": recipe.test_reviews,
            "perplexity": round(perplexity(model, tested), 3),
            "accuracy": round(float(((logits[:, 1] > logits[:, 0]) == kind).double().mean()), 4),
            "logit_positive": round(float(scores[kind].mean()), 3),
            "logit_negative": round(float(scores[~kind].mean()), 3),
        },
        "parameters": {"policy": model.num_parameters(), "classifier": judge.num_parameters()},
        "seconds": {
            "wall": round(time.perf_counter() - wall, 1),
            "cpu": round(time.process_time() - cpu, 1),
        },
    }


@torch.no_grad()
def perplexity(model: Any, texts: list[list[int]]) -> float:
    """The perplexity of texts of at least two tokens, given their first token."""
    total, count = 0.0, sum(len(row) - 1 for row in texts)
    for row in texts:
        ids = torch.tensor([row])
        total += float(model(input_ids=ids, labels=ids).loss) * (len(row) - 1)
    return math.exp(total / count)


# --- tokenizer


def make_tokenizer() -> Any:
    """Return the tokenizer of the grammar. A word is one token, so that a small model writes whole words."""
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = tokenizers.decoders.ByteLevel()
    bare.add_special_tokens([END, FIRST, UNKNOWN])
    return wrapped(bare)


def wrapped(bare: Any, **more: Any) -> Any:
    kind = transformers.PreTrainedTokenizerFast
    special = {f"{name}_token": END for name in ("bos", "eos", "pad")}
    return kind(tokenizer_object=bare, unk_token=UNKNOWN, **special, **more)


def with_first(tokenizer: Any) -> Any:
    """Return the same tokenizer with a token before each text, which the classifier reads."""
    bare = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    bare.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{FIRST} $A", special_tokens=[(FIRST, bare.token_to_id(FIRST))]
    )
    return wrapped(bare, cls_token=FIRST)


# --- models


def _language_model(recipe: Recipe) -> Any:
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary()),
        n_positions=recipe.positions,
        n_embd=recipe.width,
        n_layer=recipe.layers,
        n_head=recipe.heads,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one operation
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def _classifier(recipe: Recipe) -> Any:
    config = transformers.DistilBertConfig(
        vocab_size=len(vocabulary()),
        max_position_embeddings=recipe.positions,
        dim=recipe.judge_width,
        hidden_dim=4 * recipe.judge_width,
        n_layers=recipe.judge_layers,
        n_heads=recipe.heads,
        pad_token_id=0,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        id2label={0: "NEGATIVE", 1: "POSITIVE"},
        label2id={"NEGATIVE": 0, "POSITIVE": 1},
    )
    return transformers.DistilBertForSequenceClassification(config)


def main() -> None:
    """Make the models and print their card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for policy/, classifier/ and card.json")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    one_thread()
    card = make(Recipe(), folder)
    write_json(folder / "card.json", card)
    print(card["test"], card["seconds"])


if __name__ == "__main__":
    main()
