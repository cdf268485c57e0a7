"""Scores and perplexities of texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privrl_bench.errors import ConfigError
from privrl_bench.packs.text.generation import Answers, answer_logprobs, attention, padded

BATCH = 128


def score_id(config: Any, key: str = "env.text.classifier") -> int:
    """Return the index of the logit that is the score: the only one, or that of POSITIVE (or LABEL_1).

    Args:
        config: Of a sequence classifier, with `id2label`; one label: a reward model.
        key: Setting to name in errors.

    Raises:
        ConfigError: There are several labels, and not exactly one is POSITIVE.
    """
    labels = {int(i): str(name).upper() for i, name in (config.id2label or {}).items()}
    found = [i for i, name in labels.items() if name in ("POSITIVE", "LABEL_1")]
    if len(labels) == 1:
        found = list(labels)
    if len(found) != 1:
        rule = "must have one label (a reward model), or several with one POSITIVE (or LABEL_1)"
        raise ConfigError(key, f"{rule}, got {', '.join(labels.values()) or 'none'}")
    return found[0]


class Scorer:
    """Score of texts: the logit of `score_id`.

    Every text is truncated or padded to the same width, so a score does not depend on the other texts.

    Args:
        model: A sequence classifier. One that reads the last token needs `pad_token_id` to find it, and gets
            that of the tokenizer where its configuration has none.
        tokenizer: Of the model.
        width: Number of tokens, including special ones.

    Raises:
        ConfigError: See `score_id`.
    """

    def __init__(self, model: Any, tokenizer: Any, width: int):
        self._model = model
        self._tokenizer = tokenizer
        self._width = min(width, int(model.config.max_position_embeddings))
        self._score = score_id(model.config)
        known = (model.config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self._pad = int(next(token for token in known if token is not None))
        model.config.pad_token_id = self._pad

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> Tensor:
        """Return scores [B] on the CPU; an empty text is scored like any other."""
        scores = []
        for at in range(0, len(texts), BATCH):
            rows = self._tokenizer(texts[at : at + BATCH], truncation=True, max_length=self._width)[
                "input_ids"
            ]
            ids = torch.tensor([[*row, *[self._pad] * (self._width - len(row))] for row in rows])
            mask = torch.arange(self._width) < torch.tensor([max(len(r), 1) for r in rows])[:, None]
            where = self._model.device
            logits = self._model(
                input_ids=ids.to(where), attention_mask=mask.long().to(where)
            ).logits
            scores.append(logits[:, self._score].float().cpu())
        return torch.cat(scores) if scores else torch.zeros(0)


@torch.no_grad()
def answer_perplexity(model: Any, answers: Answers) -> float:
    """Compute the perplexity of answers given their prompts under the model's own weights."""
    steps = answers.answer_mask.shape[1]
    logprobs = answer_logprobs(model, None, answers.tokens, answers.mask, steps)
    return float((-logprobs.double().sum() / answers.answer_mask.sum()).exp())


@torch.no_grad()
def perplexity(model: Any, texts: list[list[int]]) -> float:
    """Compute the perplexity of texts of at least two tokens, given their first token."""
    total, count = 0.0, 0
    for at in range(0, len(texts), BATCH):
        tokens, mask = padded(texts[at : at + BATCH], None, int(model.config.eos_token_id))
        tokens, mask = tokens.to(model.device), mask.to(model.device)
        allowed, positions = attention(mask, mask.shape[1], model.dtype)
        out = model(
            input_ids=tokens, attention_mask=allowed, position_ids=positions, use_cache=False
        )
        logprobs = torch.log_softmax(out.logits[:, :-1].float(), -1)
        logprobs = logprobs.gather(-1, tokens[:, 1:, None])[..., 0]
        there = mask[:, :-1]  # of the previous token; tokens are contiguous
        total -= float(torch.where(there, logprobs, 0.0).double().sum())
        count += int(there.sum())
    return float(torch.tensor(total / count).exp())
