"""The small text models: a language model and a classifier, made from a grammar of reviews.

Those of `env.text.size=small` and seed 0 are part of the package (`small/`, from
`scripts/make_small_models.py`), so that they are the same on every machine. Models of other sizes or seeds go
into the cache folder (PRIVRL_BENCH_CACHE; by default the user's cache). All are in the layout of the Hugging
Face hub, with a card that states their quality and the digests of their files. Existing models are not made
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privrl_bench.config.schema import TextConfig
from privrl_bench.errors import ConfigError
from privrl_bench.packs.text.corpus import Corpus
from privrl_bench.packs.text.extra import need
from privrl_bench.packs.text.recipe import (
    END,
    FIRST,
    UNKNOWN,
    Recipe,
    folder_of,
    recipe_of,
    versions,
    vocabulary,
)
from privrl_bench.packs.text.scores import Scorer, perplexity
from privrl_bench.packs.text.small_model_training import (
    encode,
    train_classifier,
    train_language_model,
)

CARD = "card.json"  # written last
SHIPPED = Path(__file__).parent / "small"
PARTS = ("policy", "classifier")


def made(config: TextConfig, progress: bool = True) -> Path:
    """Return the folder with `policy/`, `classifier/` and `card.json`; the models are made if it is missing.

    The folder appears when it is complete. Processes that need it at the same time wait for the first. The
    package's own models are returned as they are.

    Args:
        config: size, seed and cache folder.
        progress: show progress bars.

    Raises:
        ConfigError: The extra is not installed, the cache cannot be written, or files do not match the
            digests in the card.
    """
    need("transformers")
    need("tokenizers")
    if (config.size, config.seed) == ("small", 0):
        return _verified(SHIPPED, "install the package again")
    folder = folder_of(config)
    if (folder / CARD).is_file():
        return _verified(folder, "remove the folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not (folder / CARD).is_file():
                _make_in(folder, config, progress)
    except OSError as error:
        raise ConfigError("env.text.cache", f"cannot write {folder}: {error}") from None
    return folder


def read_card(folder: Path) -> dict[str, Any]:
    """The card of models in a folder."""
    card: dict[str, Any] = json.loads((folder / CARD).read_text())
    return card


def _verified(folder: Path, remedy: str) -> Path:
    """Return the folder. Raises ConfigError: its files do not match the digests in its card."""
    try:
        whole = read_card(folder)["files"] == digests(folder)
    except (OSError, ValueError, KeyError):
        whole = False
    if not whole:
        what = f"the small text models in {folder} are damaged (digests in {CARD})"
        raise ConfigError("env.text", f"{what}; {remedy}")
    return folder


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of both models, by its path in the folder."""
    found = [path for part in PARTS for path in sorted((folder / part).iterdir())]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def _make_in(folder: Path, config: TextConfig, progress: bool) -> None:
    much = "a minute or more" if config.size == "small" else "some seconds"
    print(f"training the {config.size} text models, once ({much}): {folder}", file=sys.stderr)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        card = make(recipe_of(config), aside, progress)
        (aside / CARD).write_text(json.dumps(card, indent=1) + "\n")
        aside.chmod(0o755)
        if folder.exists():  # without a card: not written by this program
            shutil.rmtree(folder)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    print(describe(card), file=sys.stderr)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder. Without file locks the last process wins."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(recipe: Recipe, folder: Path, progress: bool) -> dict[str, Any]:
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
        train_language_model(model, rows, recipe, progress)
        judge, judge_tokenizer = _classifier(recipe), _with_first(tokenizer)
        train_classifier(judge, judge_tokenizer, corpus, recipe, progress)
    model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    judge.save_pretrained(folder / "classifier")
    judge_tokenizer.save_pretrained(folder / "classifier")
    tested = [row[: recipe.positions] for row in encode(tokenizer, unknown, END)]
    clear = [r for r in map(corpus.review, numbers[recipe.reviews :]) if r.opinion != 0.5]
    scores = Scorer(judge, judge_tokenizer, recipe.positions)([r.text for r in clear])
    kind = torch.tensor([r.opinion == 1.0 for r in clear])
    both = _predictions(judge, judge_tokenizer, [r.text for r in clear], recipe)
    return {
        "what": "a language model and a sentiment classifier of generated film reviews",
        "recipe": asdict(recipe),
        "versions": versions(),
        "vocabulary": len(vocabulary()),
        "files": digests(folder),
        "test": {
            "reviews": recipe.test_reviews,
            "perplexity": round(perplexity(model, tested), 3),
            "accuracy": round(float((both == kind).double().mean()), 4),
            "logit_positive": round(float(scores[kind].mean()), 3),
            "logit_negative": round(float(scores[~kind].mean()), 3),
        },
        "parameters": {"policy": model.num_parameters(), "classifier": judge.num_parameters()},
        "seconds": {
            "wall": round(time.perf_counter() - wall, 1),
            "cpu": round(time.process_time() - cpu, 1),
        },
    }


def describe(card: dict[str, Any]) -> str:
    """Return the card in one line."""
    test, sizes, took = card["test"], card["parameters"], card["seconds"]
    return (
        f"language model: {sizes['policy']:,} parameters, test perplexity {test['perplexity']:g} per token; "
        f"classifier: {sizes['classifier']:,} parameters, test accuracy {test['accuracy']:.1%} (positive "
        f"logit {test['logit_positive']:+.2f} of positive reviews, {test['logit_negative']:+.2f} of negative "
        f"ones); trained in {took['wall']:.0f} s ({took['cpu']:.0f} s of CPU)"
    )


# --- tokenizer


def make_tokenizer() -> Any:
    """Return the tokenizer of the grammar. A word is one token, so that a small model writes whole words."""
    tokenizers = need("tokenizers")
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = tokenizers.decoders.ByteLevel()
    bare.add_special_tokens([END, FIRST, UNKNOWN])
    return _wrapped(bare)


def _wrapped(bare: Any, **more: Any) -> Any:
    kind = need("transformers").PreTrainedTokenizerFast
    special = {f"{name}_token": END for name in ("bos", "eos", "pad")}
    return kind(tokenizer_object=bare, unk_token=UNKNOWN, **special, **more)


def _with_first(tokenizer: Any) -> Any:
    """Return the same tokenizer with a token before each text, which the classifier reads."""
    tokenizers = need("tokenizers")
    bare = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    bare.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{FIRST} $A", special_tokens=[(FIRST, bare.token_to_id(FIRST))]
    )
    return _wrapped(bare, cls_token=FIRST)


# --- models


def _language_model(recipe: Recipe) -> Any:
    transformers = need("transformers")
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary()),
        n_positions=recipe.positions,
        n_embd=recipe.width,
        n_layer=recipe.layers,
        n_head=recipe.heads,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one operation
        bos_token_id=0,
        eos_token_id=0,
        **{f"{where}_pdrop": 0.0 for where in ("resid", "embd", "attn")},
    )
    return transformers.GPT2LMHeadModel(config)


def _classifier(recipe: Recipe) -> Any:
    transformers = need("transformers")
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


@torch.no_grad()
def _predictions(judge: Any, tokenizer: Any, texts: list[str], recipe: Recipe) -> Tensor:
    """Whether the logit of POSITIVE is the larger one, [B] bool."""
    found = []
    for text in texts:
        row = torch.tensor([encode(tokenizer, [text])[0][: recipe.positions]])
        logits = judge(input_ids=row).logits[0]
        found.append(bool(logits[1] > logits[0]))
    return torch.tensor(found)
