"""Training of the small text models: next-token prediction and classification of review pieces."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from privrl_bench.packs.text.corpus import Corpus
from privrl_bench.packs.text.pieces import pieces
from privrl_bench.packs.text.recipe import Recipe
from privrl_bench.types import generator

_LANGUAGE, _JUDGE = 1, 2  # names of random streams


def encode(tokenizer: Any, texts: Sequence[str], end: str = "") -> list[list[int]]:
    """Tokenise texts, each followed by `end`."""
    rows: list[list[int]] = tokenizer([text + end for text in texts])["input_ids"]
    return rows


def train_language_model(
    model: Any, rows: list[list[int]], recipe: Recipe, progress: bool = False
) -> None:
    """Train next-token prediction on tokenised texts, in place."""

    def loss(ids: Tensor, mask: Tensor, _: list[int]) -> Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # causal: padding is behind
        each = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none"
        ).view(ids.shape[0], -1)
        return (each * mask[:, 1:]).sum() / mask[:, 1:].sum()

    stream = (recipe.seed, _LANGUAGE)
    _train(model, loss, rows, recipe.epochs, recipe, stream, progress and "language model")


def train_classifier(
    judge: Any, tokenizer: Any, corpus: Corpus, recipe: Recipe, progress: bool
) -> None:
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
    _train(judge, loss, rows, 1, recipe, stream, progress and "classifier")


def _train(
    model: Any,
    loss: Callable[[Tensor, Tensor, list[int]], Tensor],
    rows: list[list[int]],
    epochs: int,
    recipe: Recipe,
    stream: tuple[int, int],
    title: str | bool,
) -> None:
    """Run AdamW over batches of rows of similar length; `loss` takes tokens [B, S], mask and row numbers."""
    from rich.console import Console
    from rich.progress import track

    draws = generator(*stream)
    batches = [b for _ in range(epochs) for b in _batches(rows, recipe.batch, draws)]
    adam = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=0.01)
    warm = max(1, len(batches) // 20)

    def height(step: int) -> float:
        return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / len(batches)))

    schedule = torch.optim.lr_scheduler.LambdaLR(adam, height)
    model.train()
    hidden = not title or not sys.stderr.isatty()
    on = Console(stderr=True)
    for members in track(batches, str(title), console=on, transient=True, disable=hidden):
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
