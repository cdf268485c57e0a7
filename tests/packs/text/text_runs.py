"""Small runs on texts: models with random weights in the hub's layout, and a score that can be learned."""

from dataclasses import replace
from functools import cache

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

WORDS = [
    *("the", "a", "film", "plot", "cast", "was", "is", "so", "very", "and", "but"),
    *("good", "great", "fine", "bad", "dull", "weak", "long", "short", "it"),
]
END, GOOD = "<|endoftext|>", "good"
REVIEWS, NEW = 200, 6
# Slot of the first round, and of the second, whose review is public; such reviews.
ABSENT, PUBLIC = 2, 29

SMALL = (
    *("env=sentiment_small", "env.text.prompt_tokens=[1,4]", f"env.text.new_tokens={NEW}"),
    *("env.text.min_characters=0", "env.text.holdout=8", "privacy.users_per_round=5"),
    *("eval.episodes=8", "eval.every=0", "log=none", "log.plot=false", "log.progress=false"),
)


def make(folder):
    """Policy, classifier and reviews in a folder; returns the words that choose them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        GPT2Config,
        GPT2ForSequenceClassification,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )

    known = {word: i for i, word in enumerate([END, *WORDS])}
    words = Tokenizer(models.WordLevel(known, unk_token=END))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=END)
    sizes = {"vocab_size": len(known), "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        GPT2LMHeadModel(GPT2Config(**sizes, **ends)).save_pretrained(folder / "policy")
        labels = {
            "id2label": {0: "NEGATIVE", 1: "POSITIVE"},
            "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
        }
        judge = GPT2ForSequenceClassification(GPT2Config(**sizes, **ends, **labels))
        judge.save_pretrained(folder / "classifier")
    for name in ("policy", "classifier"):
        tokenizer.save_pretrained(folder / name)
    g = torch.Generator().manual_seed(4)
    lines = [
        " ".join(WORDS[i] for i in torch.randint(len(WORDS), (5,), generator=g))
        for _ in range(REVIEWS)
    ]
    (folder / "reviews.txt").write_text("\n".join(lines) + "\n")
    names = ("policy", "classifier", "prompts")
    places = (folder / "policy", folder / "classifier", folder / "reviews.txt")
    words = (f"env.text.{n}={p}" for n, p in zip(names, places, strict=True))
    return (*words, "env.text.simulated=true")


@cache
def composed(*words):
    """Composing takes its time."""
    return compose(later_wins([*words]))


def config_of(texts, algo, *words, rounds=4, seed=0):
    users = next((int(w.split("=")[1]) for w in words if w.startswith("privacy.users_per")), 5)
    steps = f"total_steps={rounds * users * NEW}"
    few = ["algo.baseline_prompts=4"] if algo == "dppg" else []
    found = composed(f"algo={algo}_text", *SMALL, *few, *texts, steps, *words)
    return replace(found, seed=seed)


def parts_of(texts, algo, *words, rounds=4, seeds=(0,)):
    configs = [config_of(texts, algo, *words, rounds=rounds, seed=s) for s in seeds]
    return make_plan(configs)


def session(texts, algo, *words, rounds=4, seeds=(0,)):
    return Trainer(parts_of(texts, algo, *words, rounds=rounds, seeds=seeds))


def how_many_good(texts):
    """A score that a policy can learn to raise, whatever its weights are."""
    return torch.tensor([float(text.split().count(GOOD)) for text in texts])


def learned(texts, algo, *words, rounds=7):
    """Mean scores of the rounds where the word GOOD is what counts."""
    few = ["algo.baseline_prompts=8"] if algo == "dppg" else []
    more = ("privacy.users_per_round=24", "env.text.holdout=20", "algo.kl_coef=0.0", *few)
    one = session(texts, algo, *more, *words, rounds=rounds)
    task = replace(one.parts.users.task, score=how_many_good)
    one.collector.answers.task = task
    one.parts.algo._context.sources.given.task = task
    scores = []
    while not one.over:
        one.step()
        scores.append(one.diagnostics[0]["train/return_mean"])
    return scores
