"""Sampling of answers from a causal language model in batches, and their log-probabilities.

Axes: B prompts, L the width to which prompts are left-padded, T tokens of an answer, V words. All answers
start in column L. A row is a function of its prompt, its uniforms and the weights; for equality to the last
bit, callers keep the width and the number of rows equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor] | None  # by the module's names; missing ones, or None: the module's own


@dataclass(frozen=True)
class Answers:
    """Sampled answers.

    Attributes:
        tokens: [B, L + T] prompt and answer; the end-of-text token outside `mask`.
        mask: [B, L + T] bool, tokens of the prompt or the answer, including its final end-of-text token.
        answer_mask: [B, T] bool, the columns of `mask` from L on.
        logprobs: [B, T] log-probability of each token of the answer under the model; 0 outside the mask.
    """

    tokens: Tensor
    mask: Tensor
    answer_mask: Tensor
    logprobs: Tensor

    def rows(self) -> list[list[int]]:
        """Return the tokens of each prompt with its answer, without padding."""
        pairs = zip(self.tokens.tolist(), self.mask.tolist(), strict=True)
        return [[t for t, there in zip(row, kept, strict=True) if there] for row, kept in pairs]


def padded(prompts: list[list[int]], width: int | None, fill: int) -> tuple[Tensor, Tensor]:
    """Left-pad prompts.

    Args:
        prompts: B lists of tokens.
        width: L; None: the length of the longest prompt.
        fill: Padding token.

    Returns:
        ([B, L] tokens, [B, L] bool mask).

    Raises:
        ValueError: A prompt is empty or longer than `width`.
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
    """Build the causal attention bias of the last `queries` columns, in a form that `vmap` supports.

    Args:
        mask: [B, S] bool, true for tokens.
        queries: Number of query columns.
        dtype: Of the bias.

    Returns:
        ([B, 1, queries, S] to add to attention scores, [B, queries] positions counted from the first token).
    """
    size = mask.shape[-1]
    columns = torch.arange(size, device=mask.device)
    seen = mask[:, None, :] & (columns[None, :] <= columns[-queries:, None])
    # Not -inf: a padded column attends to nothing, and its softmax must be finite.
    low = torch.finfo(dtype).min
    allowed = torch.where(seen, 0.0, low).to(dtype)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return allowed[:, None], positions[:, -queries:]


def call(model: Any, weights: Weights, **arguments: Any) -> Any:
    """Run the model's forward pass with replaced weights; tied weights stay tied."""
    if weights is None:
        return model(**arguments)
    return torch.func.functional_call(model, weights, (), arguments)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Sample tokens by inversion of the distribution function.

    Args:
        logits: [B, V].
        uniforms: [B] in [0, 1).

    Returns:
        [B] tokens.
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
    """Sample answers at temperature 1 from the full vocabulary, up to the end-of-text token.

    Args:
        model: A causal language model of transformers, in eval mode.
        params: Replaced weights by name; missing ones are the module's own.
        prompts: B lists of tokens.
        new_tokens: T.
        uniforms: [B, T] in [0, 1); an answer is a function of its own row and the weights.
        width: L; None: the length of the longest prompt.
    """
    end = int(model.config.eos_token_id)
    tokens, mask = padded(prompts, width, end)
    tokens, mask, uniforms = (x.to(model.device) for x in (tokens, mask, uniforms))
    ahead = tokens
    going = torch.ones(len(prompts), dtype=torch.bool, device=mask.device)
    cache, logprobs = None, []
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
        logprob = torch.log_softmax(logits, -1).gather(-1, chosen[:, None])[:, 0]
        logprobs.append(torch.where(going, logprob, 0.0))
        ahead = chosen[:, None]
        tokens, mask = torch.cat([tokens, ahead], 1), torch.cat([mask, going[:, None]], 1)
        going = going & (chosen != end)
    return Answers(tokens, mask, mask[:, -new_tokens:], torch.stack(logprobs, 1))


def answer_logprobs(
    model: Any, params: Weights, tokens: Tensor, mask: Tensor, steps: int
) -> Tensor:
    """Compute log-probabilities of answers in one forward pass; supports autograd and `vmap`.

    Args:
        model: See `generate`.
        params: See `generate`.
        tokens: [B, L + T], see `Answers`.
        mask: [B, L + T], see `Answers`.
        steps: T.

    Returns:
        [B, T] of the answers' tokens, 0 outside the mask.
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
    logits = out.logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[:, -steps:, None])[..., 0]
    return torch.where(mask[:, -steps:], logprobs, 0.0)


@torch.no_grad()
def answer_perplexity(model: Any, answers: Answers) -> float:
    """Compute the perplexity of answers given their prompts under the model's own weights."""
    steps = answers.answer_mask.shape[1]
    logprobs = answer_logprobs(model, None, answers.tokens, answers.mask, steps)
    return float((-logprobs.double().sum() / answers.answer_mask.sum()).exp())
