"""Folders in the hub's layout with tiny random models, and settings that use them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import tokenizers
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
)

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import EnvConfig
from privrl_bench.packs.text.corpus import Corpus

WORDS = 400


@cache
def script():
    """`scripts/make_small_models.py`, which makes the models that the package has."""
    path = Path(__file__).parents[3] / "scripts" / "make_small_models.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


@cache
def tokenizer_of(reviews: int = 60):
    """Byte-level BPE as GPT-2's, with `WORDS` tokens."""
    bare = tokenizers.Tokenizer(tokenizers.models.BPE())
    bare.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=[script().END, script().FIRST, script().UNKNOWN],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator([Corpus(0).review(i).text for i in range(reviews)], trainer)
    return script().wrapped(bare)


def tiny_policy(seed: int = 0, **more) -> GPT2LMHeadModel:
    """Far from uniform, so that mistakes show."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 48}
    config = GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 0, **more})
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(6.0 if weight.dim() > 1 else 1.0)
    return model


def tiny_judge(labels: dict[int, str] | None = None, bert: bool = False):
    torch.manual_seed(1)
    names = {"id2label": labels, "label2id": {v: k for k, v in labels.items()}} if labels else {}
    shared = {"vocab_size": WORDS, "max_position_embeddings": 48, "pad_token_id": 0, **names}
    if bert:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        made = BertForSequenceClassification(BertConfig(**shared, **sizes, intermediate_size=32))
    else:
        sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
        made = DistilBertForSequenceClassification(DistilBertConfig(**shared, **sizes))
    for weight in made.parameters():
        weight.data.mul_(4.0 if weight.dim() > 1 else 1.0)
    return made.eval()


def write_policy(folder: Path, old_layout: bool = False) -> Path:
    """`old_layout`: vocab.json and merges.txt as GPT-2's repositories have them, and pytorch_model.bin."""
    model, tokenizer = tiny_policy(), tokenizer_of()
    model.save_pretrained(folder)
    if old_layout:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        tokenizer.backend_tokenizer.model.save(str(folder))
        assert {"vocab.json", "merges.txt"} <= {p.name for p in folder.iterdir()}
    else:
        tokenizer.save_pretrained(folder)
    return folder


def write_judge(folder: Path, labels: dict[int, str] | None = None, bert: bool = False) -> Path:
    tiny_judge(labels or {0: "NEGATIVE", 1: "POSITIVE"}, bert).save_pretrained(folder)
    script().with_first(tokenizer_of()).save_pretrained(folder)
    return folder


def write_reward_model(folder: Path, padding: int | None) -> Path:
    """A decoder with one output, which reads the last token that is not `padding`."""
    torch.manual_seed(2)
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 48}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=padding, num_labels=1)
    made = GPT2ForSequenceClassification(config)
    for weight in made.parameters():
        weight.data.mul_(6.0 if weight.dim() > 1 else 1.0)
    made.save_pretrained(folder)
    script().with_first(tokenizer_of()).save_pretrained(folder)
    return folder


@cache
def shipped() -> EnvConfig:
    return compose(["env=sentiment_small"]).env


def text_env(**changes) -> EnvConfig:
    """`env=sentiment_small` with some of its `env.text` changed."""
    steps = changes.get("new_tokens", shipped().text.new_tokens)
    return replace(shipped(), user_steps=steps, text=replace(shipped().text, **changes))
