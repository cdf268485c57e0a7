"""Adapters: zero initial change, W + scale A B, and the trained parameters."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from privrl_bench.packs.text.adapters import AllWeights, Lora


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=30, n_positions=12, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval().requires_grad_(False)


def said(model, weights):
    tokens = torch.arange(10)[None] % 7
    return torch.func.functional_call(model, weights, (tokens,)).logits


def test_a_fresh_adapter_changes_nothing(model):
    for adapter in (Lora(model, 3, 6.0, "attention"), AllWeights(model)):
        vector = adapter.init(torch.Generator().manual_seed(1))
        assert vector.shape == (adapter.size,)
        torch.testing.assert_close(said(model, adapter.weights(vector)), said(model, {}))


@pytest.mark.parametrize(("targets", "count"), [("attention", 2), ("linear", 8)])
def test_a_lora_is_a_product_of_two_factors(model, targets, count):
    adapter = Lora(model, 3, 6.0, targets, "b")
    assert len(adapter.names) == count
    own = dict(model.named_parameters())
    vector = torch.randn(adapter.size, generator=torch.Generator().manual_seed(2))
    outputs = sum(own[name].shape[1] for name in adapter.names)
    assert adapter.trained == 3 * outputs
    at_a, at_b = 0, adapter.size - adapter.trained
    for name, weight in adapter.weights(vector).items():
        inputs, width = own[name].shape
        a = vector[at_a : at_a + 3 * inputs].reshape(inputs, 3)
        b = vector[at_b : at_b + 3 * width].reshape(3, width)
        torch.testing.assert_close(weight, own[name] + 2.0 * a @ b)
        at_a, at_b = at_a + 3 * inputs, at_b + 3 * width
    assert (at_a, at_b) == (adapter.size - adapter.trained, adapter.size)
    both = Lora(model, 3, 6.0, targets, "both")
    assert both.size == both.trained == adapter.size


def test_all_weights_are_every_number_once(model):
    adapter = AllWeights(model)
    assert adapter.trained == adapter.size == sum(p.numel() for p in model.parameters())
    ones = adapter.weights(torch.ones(adapter.size))
    for name, weight in model.named_parameters():  # the head is tied to the embedding
        torch.testing.assert_close(ones[name], weight + 1.0)
    shifted = said(model, ones)
    assert not torch.allclose(shifted, said(model, {}))


def test_a_lora_needs_weights_that_are_there(model):
    with pytest.raises(ValueError, match=r"attn\.c_attn"):
        Lora(torch.nn.Linear(2, 2), 1, 1.0, "attention")
