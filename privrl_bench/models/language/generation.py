"""Answers of a causal language model: sampled in batches with a cache, and their log-probabilities.

B prompts, L the width that prompts are padded to on the left, T tokens of an answer, V words. All answers
begin in column L. A row is a function of its prompt, its uniforms and the weights: the width and the
number of rows are the caller's to keep equal where results must be equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor] | None  # by the module's own names; those left out, or None: its own


@dataclass(frozen=True)
class Answers:
    """What a model wrote.

    Attributes:
        tokens: [B, L + T] prompt and answer; outside `mask` the end-of-text token.
        mask: [B, L + T] bool: a token of the prompt or of the answer, the end-of-text it ends with included.
        lengths: [B] tokens of the prompt: it is in columns L - length to L.
        answer_mask: [B, T] bool: the columns of `mask` from L on.
        logprobs: [B, T] log-probability of each token of the answer under the model; 0 outside the mask.
    """

    tokens: Tensor
    mask: Tensor
    lengths: Tensor
    answer_mask: Tensor
    logprobs: Tensor

    @property
    def width(self) -> int:
        """L."""
        return self.tokens.shape[1] - self.answer_mask.shape[1]

    def rows(self) -> list[list[int]]:
        """The tokens of each prompt with its answer, padding left out."""
        pairs = zip(self.tokens.tolist(), self.mask.tolist(), strict=True)
        return [[t for t, there in zip(row, kept, strict=True) if there] for row, kept in pairs]


def padded(prompts: list[list[int]], width: int | None, fill: int) -> tuple[Tensor, Tensor]:
    """([B, L] tokens, [B, L] mask): prompts with their last tokens in the last column.

    Raises ValueError: an empty prompt, or one longer than `width`.
    """
    sizes = [len(p) for p in prompts]
    width = max(sizes) if width is None else width
    if min(sizes) < 1 or max(sizes) > width:
        raise ValueError(f"prompts must have 1 to {width} tokens, got {min(sizes)} to {max(sizes)}")
    tokens = torch.tensor([[fill] * (width - len(p)) + p for p in prompts])
    mask = torch.arange(width) >= width - torch.tensor(sizes)[:, None]
    return tokens, mask


def attention(
    mask: Tensor, queries: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """What the last `queries` columns may look at, in the one form that `vmap` takes, too.

    Args:
        mask: [B, S] bool, the columns that are tokens.

    Returns:
        ([B, 1, queries, S] to add to attention scores, [B, queries] positions counted from the first token).
    """
    size = mask.shape[-1]
    columns = torch.arange(size, device=mask.device)
    seen = mask[:, None, :] & (columns[None, :] <= columns[-queries:, None])
    low = torch.finfo(
        dtype
    ).min  # not -inf: a padded column sees nothing, and its softmax must be finite
    allowed = torch.where(seen, 0.0, low).to(dtype)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return allowed[:, None], positions[:, -queries:]


def call(model: Any, weights: Weights, **arguments: Any) -> Any:
    """The model's forward pass with other weights; tied ones follow each other."""
    if weights is None:
        return model(**arguments)
    return torch.func.functional_call(model, weights, (), arguments)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """[B] choices by inverse distribution function.

    Args:
        logits: [B, V].
        uniforms: [B] in [0, 1).
    """
    below = torch.softmax(logits.double(), -1).cumsum(-1)
    return (
        (below <= uniforms.double()[:, None] * below[:, -1:])
        .sum(-1)
        .clamp(max=logits.shape[-1] - 1)
    )


@torch.no_grad()
def generate(
    model: Any,
    params: Weights,
    prompts: list[list[int]],
    new_tokens: int,
    uniforms: Tensor,
    width: int | None = None,
) -> Answers:
    """Answers sampled at temperature 1 from the whole vocabulary; one ends with the end-of-text token.

    Args:
        model: a causal language model of transformers, in eval mode.
        params: weights in place of the module's own, by its names; any left out are its own.
        prompts: B lists of tokens.
        new_tokens: T.
        uniforms: [B, T] in [0, 1): row b's answer is a function of its own numbers and the weights.
        width: L; None: the longest prompt's length.
    """
    end = int(model.config.eos_token_id)
    tokens, mask = padded(prompts, width, end)
    tokens, mask, uniforms = (x.to(model.device) for x in (tokens, mask, uniforms))
    lengths, ahead = mask.sum(-1), tokens
    going = torch.ones(len(prompts), dtype=torch.bool, device=mask.device)
    cache, behavior_probs = None, []
    for t in range(new_tokens):
        allowed, positions = attention(mask, ahead.shape[1], model.dtype)
        out = call(
            model,
            params,
            input_ids=ahead,
            attention_mask=allowed,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, logits = out.past_key_values, out.logits[:, -1].float()
        chosen = torch.where(going, draw(logits, uniforms[:, t]), end)
        chance = torch.log_softmax(logits, -1).gather(-1, chosen[:, None])[:, 0]
        behavior_probs.append(torch.where(going, chance, 0.0))
        ahead = chosen[:, None]
        tokens, mask = torch.cat([tokens, ahead], 1), torch.cat([mask, going[:, None]], 1)
        going = going & (chosen != end)
    return Answers(tokens, mask, lengths, mask[:, -new_tokens:], torch.stack(behavior_probs, 1))


def answer_logits(model: Any, params: Weights, tokens: Tensor, mask: Tensor, steps: int) -> Tensor:
    """[B, T, V] logits of each token of the answers, from one forward pass; differentiable, and under `vmap`.

    Args:
        params: as for `generate`.
        tokens, mask: [B, L + T] as in `Answers`.
        steps: T.
    """
    allowed, positions = attention(mask, mask.shape[-1], model.dtype)
    out = call(
        model,
        params,
        input_ids=tokens,
        attention_mask=allowed,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=steps + 1,
    )
    return out.logits[:, :-1].float()


def answer_logprobs(
    model: Any, params: Weights, tokens: Tensor, mask: Tensor, steps: int
) -> Tensor:
    """[B, T] log-probabilities of the answers' tokens, 0 outside the mask; see `answer_logits`."""
    logits = answer_logits(model, params, tokens, mask, steps)
    behavior_probs = torch.log_softmax(logits, -1).gather(-1, tokens[:, -steps:, None])[..., 0]
    return torch.where(mask[:, -steps:], behavior_probs, 0.0)
