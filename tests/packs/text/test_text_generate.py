"""Batched answers with a cache against one row at a time without one."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_folders import WORDS, tiny_policy

from privrl_bench.packs.text.generation import (
    answer_logprobs,
    draw,
    generate,
    padded,
)

T = 9
PROMPTS = [[5, 6], [7, 8, 9, 1, 2, 11, 12], [3], [40, 41, 42, 43]]


@pytest.fixture(scope="module")
def model():
    return tiny_policy()


def uniforms(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, T, generator=torch.Generator().manual_seed(seed))


def other_weights(model, seed: int, scale: float = 0.2) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        name: w + scale * w.std() * torch.randn(w.shape, generator=g)
        for name, w in model.named_parameters()
        if "c_attn" in name or "wte" in name
    }


def by_hand(model, prompt: list[int], numbers: torch.Tensor) -> tuple[list[int], list[float]]:
    """One row: a forward pass of the full text for every token, without padding or cache."""
    text, behavior_probs = list(prompt), []
    for u in numbers.tolist():
        logits = model(input_ids=torch.tensor([text])).logits[0, -1].double()
        chance = torch.softmax(logits, -1)
        below, word = 0.0, 0
        for word in range(WORDS):
            below += float(chance[word])
            if u < below:
                break
        text.append(word)
        behavior_probs.append(float(chance[word].log()))
        if word == 0:
            break
    return text[len(prompt) :], behavior_probs


@pytest.mark.parametrize("width", [None, 7, 12])
def test_answers_are_those_of_full_forward_passes(model, width):
    numbers = uniforms(4)
    numbers[2, 4] = 0.0  # the first word: the end
    found = generate(model, None, PROMPTS, T, numbers, width)
    start = found.tokens.shape[1] - T
    assert start == (width or 7)
    for b, prompt in enumerate(PROMPTS):
        words, behavior_probs = by_hand(model, prompt, numbers[b])
        size = len(words)
        assert found.answer_mask[b].tolist() == [True] * size + [False] * (T - size)
        assert found.rows()[b] == prompt + words
        assert found.tokens[b, start + size :].eq(0).all()
        torch.testing.assert_close(
            found.logprobs[b, :size], torch.tensor(behavior_probs), rtol=0, atol=1e-5
        )
        assert not found.logprobs[b, size:].any()
    assert found.mask[:, :start].sum(-1).tolist() == [2, 7, 1, 4]
    assert found.answer_mask.sum(-1).tolist()[2] == 5


def test_other_weights_are_the_same_as_a_model_that_has_them(model):
    weights = other_weights(model, 1)
    theirs = tiny_policy()
    theirs.load_state_dict(weights, strict=False)  # tied: the output layer follows
    mine, plain = (
        generate(m, w, PROMPTS, T, uniforms(4)) for m, w in ((model, weights), (theirs, None))
    )
    assert mine.tokens.equal(plain.tokens)
    assert mine.logprobs.equal(plain.logprobs)
    assert not generate(model, None, PROMPTS, T, uniforms(4)).tokens.equal(mine.tokens)


def test_a_row_does_not_depend_on_its_neighbours(model):
    numbers = uniforms(4)
    first = generate(model, None, PROMPTS, T, numbers, 8)
    other = uniforms(4, seed=5)
    other[1] = numbers[1]
    second = generate(model, None, [[9], PROMPTS[1], [8, 8, 8], [1, 2]], T, other, 8)
    assert first.tokens[1].equal(second.tokens[1])
    assert first.logprobs[1].equal(second.logprobs[1])


def test_teacher_forcing_gives_the_same_log_probabilities(model):
    numbers = uniforms(4)
    numbers[0, 3] = 0.0
    found = generate(model, None, PROMPTS, T, numbers)
    again = answer_logprobs(model, None, found.tokens, found.mask, T)
    torch.testing.assert_close(again, found.logprobs, rtol=0, atol=1e-5)
    assert again.shape == (4, T)


def test_every_row_may_have_weights_of_its_own_under_vmap(model):
    found = generate(model, None, PROMPTS, T, uniforms(4))
    each = [other_weights(model, b) for b in range(4)]
    stacked = {name: torch.stack([w[name] for w in each]) for name in each[0]}

    def behavior_probs(weights, tokens, mask):
        return answer_logprobs(model, weights, tokens[None], mask[None], T)[0]

    def total(*row):
        return behavior_probs(*row).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an operation without a batching rule warns, and is a loop
        together = torch.func.vmap(behavior_probs)(stacked, found.tokens, found.mask)
        slopes = torch.func.vmap(torch.func.grad(total))(stacked, found.tokens, found.mask)
    for b in range(4):
        row = each[b], found.tokens[b], found.mask[b]
        torch.testing.assert_close(together[b], behavior_probs(*row), rtol=0, atol=1e-5)
        alone = torch.func.grad(total)(*row)
        for name, slope in alone.items():
            torch.testing.assert_close(slopes[name][b], slope, rtol=1e-4, atol=1e-4)
            assert slope.any()


def test_choices_by_inverse_distribution_function():
    logits = torch.tensor([0.0, 0.2, 0.3, 0.5]).log().expand(7, 4)
    u = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 0.99, 1 - 2**-24])
    assert draw(logits, u).tolist() == [1, 1, 2, 2, 3, 3, 3]
    assert draw(logits[:1] + 100.0, u[3:4]).tolist() == [2]


@settings(max_examples=40)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=9),
    st.floats(0, 1, exclude_max=True),
)
def test_a_choice_is_where_the_distribution_function_passes_the_number(logits, u):
    chosen = int(draw(torch.tensor([logits]), torch.tensor([u], dtype=torch.float64)))
    below = torch.softmax(torch.tensor(logits).double(), -1).cumsum(-1)
    assert below[chosen] >= u - 1e-9
    assert chosen == 0 or below[chosen - 1] <= u + 1e-9


@pytest.mark.parametrize(("prompts", "width"), [([[1], []], None), ([[1, 2, 3]], 2)])
def test_prompts_that_do_not_fit_are_refused(prompts, width):
    with pytest.raises(ValueError, match="prompts must have 1 to"):
        padded(prompts, width, 0)
