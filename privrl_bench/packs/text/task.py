"""Models, tokenizer, prompts and reward of a text environment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privrl_bench.config.schema import MADE, EnvConfig, TextConfig
from privrl_bench.errors import ConfigError, require
from privrl_bench.packs.text.extra import need, without_bars
from privrl_bench.packs.text.generation import (
    Answers,
    answer_logits,
    answer_logprobs,
    generate,
)
from privrl_bench.packs.text.prompt_order import prompts_of
from privrl_bench.packs.text.recipe import vocabulary
from privrl_bench.packs.text.scores import Scorer, answer_perplexity, perplexity
from privrl_bench.packs.text.small_models import made
from privrl_bench.types import EnvSpec

__all__ = [
    "Answers",
    "TextTask",
    "answer_logits",
    "answer_logprobs",
    "answer_perplexity",
    "env_spec",
    "generate",
    "load_classifier",
    "load_policy",
    "open_task",
    "perplexity",
]


@dataclass(frozen=True)
class TextTask:
    """A text environment. The models are frozen and in eval mode.

    Attributes:
        model: The start model, a causal language model of transformers; also the KL reference.
        tokenizer: Of the model.
        classifier: The reward model, a sequence classifier of transformers; with one label, a model of rewards.
        prompts_train: One prompt per user in the order of the users; empty: an absent user.
        prompts_eval: Public prompts.
        new_tokens: T, maximum number of tokens of an answer.
        width: L, padded length of prompts, their maximum length.
        eos: The end-of-text token.
        score: From texts to scores [B], see `scores.score_id`; each depends on its own text only.
    """

    model: Any
    tokenizer: Any
    classifier: Any
    prompts_train: list[list[int]]
    prompts_eval: list[list[int]]
    new_tokens: int
    width: int
    eos: int
    score: Callable[[list[str]], Tensor]

    def decode(self, tokens: list[list[int]]) -> list[str]:
        """Decode rows of tokens without special tokens."""
        found: list[str] = self.tokenizer.batch_decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return found

    def texts(self, answers: Answers) -> list[str]:
        """Return each prompt with its answer as text."""
        return self.decode(answers.rows())

    def rewards(self, answers: Answers) -> Tensor:
        """Return scores of prompt and answer together, [B]."""
        return self.score(self.texts(answers))

    def to(self, device: str) -> TextTask:
        """Move both models to a device; return self."""
        self.model.to(device)
        self.classifier.to(device)
        return self


def open_task(config: EnvConfig) -> TextTask:
    """Load the models, or train them, and load the prompts, without network access.

    Raises:
        ConfigError: `env.kind` is not text; a package, model or file is missing (with the command that
            downloads it); a model is of the wrong kind or has too few positions.
    """
    text = _text(config)
    if text.prompts not in (None, MADE) and not Path(str(text.prompts)).expanduser().exists():
        # Before models are trained, which may be necessary.
        raise ConfigError("env.text.prompts", f"no such file or folder: {text.prompts}")
    policy, classifier = _folders(text)
    model, tokenizer = load_policy(policy)
    judge, judge_tokenizer = load_classifier(classifier)
    width = text.prompt_tokens[1] - 1
    longest, room = width + text.new_tokens, int(model.config.max_position_embeddings)
    require(
        "env.text.new_tokens",
        longest <= room,
        f"at most {room - width} for this model",
        text.new_tokens,
    )
    users, aside = prompts_of(text, tokenizer)
    return TextTask(
        model,
        tokenizer,
        judge,
        users,
        aside,
        text.new_tokens,
        width,
        int(model.config.eos_token_id),
        # Twice: the classifier's tokenizer may split words into more tokens than the policy's.
        Scorer(judge, judge_tokenizer, 2 * longest + 2),
    )


def env_spec(config: EnvConfig) -> EnvSpec:
    """Return the public facts of a text environment without loading a model.

    `obs_dim` is the maximum number of tokens of a prompt with its answer, `actions` the size of the vocabulary,
    `max_episode_steps` the maximum number of tokens of an answer.

    Raises:
        ConfigError: The policy is missing.
    """
    text = _text(config)
    if text.policy == MADE:
        words = len(vocabulary())
    else:
        words = int(_config("env.text.policy", text.policy).vocab_size)
    longest = text.prompt_tokens[1] - 1 + text.new_tokens
    return EnvSpec(config.name, longest, True, words, text.new_tokens)


def _text(config: EnvConfig) -> TextConfig:
    if config.kind != "text":
        raise ConfigError("env.kind", f"must be text, got {config.kind!r}")
    return config.text


def _folders(text: TextConfig) -> tuple[str, str]:
    """Names or folders of policy and classifier; `made` ones are trained if they do not exist."""
    if MADE not in (text.policy, text.classifier):
        return text.policy, text.classifier
    folder = made(text)
    names = {"policy": text.policy, "classifier": text.classifier}
    own = {key: str(folder / key) if name == MADE else name for key, name in names.items()}
    return own["policy"], own["classifier"]


def load_policy(name: str) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer from a folder or the hub's local cache.

    Raises:
        ConfigError: The model is not on this machine, is not a causal language model, or has no end-of-text
            token.
    """
    key = "env.text.policy"
    model = _model(key, name, "AutoModelForCausalLM")
    tokenizer = _from_disk(key, name, "AutoTokenizer")
    if model.config.eos_token_id is None:
        raise ConfigError(key, f"{name}: its config.json names no eos_token_id")
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigError(
            key,
            f"{name}: the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}",
        )
    return model, tokenizer


def load_classifier(name: str) -> tuple[Any, Any]:
    """Load a sequence classifier and its tokenizer, as `load_policy`.

    Raises:
        ConfigError: The model is not on this machine or is not a classifier.
    """
    key = "env.text.classifier"
    model = _model(key, name, "AutoModelForSequenceClassification")
    return model, _from_disk(key, name, "AutoTokenizer")


def _model(key: str, name: str, kind: str) -> Any:
    """Load a frozen model in float32, with eager attention, which `vmap` supports."""
    more = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    model, report = _from_disk(key, name, kind, **more)
    missing = sorted(report["missing_keys"])
    if missing or report.get("mismatched_keys"):
        raise ConfigError(
            key,
            f"{name} is another kind of model: no weights for {missing[0] if missing else 'its shape'}",
        )
    return model.eval().requires_grad_(False)


def _config(key: str, name: str) -> Any:
    return _from_disk(key, name, "AutoConfig")


def _folder(key: str, name: str) -> Path:
    """The folder of that name, or the local cache of a hub repository, without network access.

    Loaders are given folders only: with a name, some loaders of transformers access the network even for
    local files.

    Raises:
        ConfigError: Neither is on this machine, or it has no config.json.
    """
    found = Path(name).expanduser()
    if not found.is_dir():
        hub = need("huggingface_hub")
        try:
            found = Path(hub.snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            raise ConfigError(
                key, f"{name!r} is not on this machine; download it with: hf download {name}"
            ) from None
    if not (found / "config.json").is_file():
        raise ConfigError(key, f"{found} has no config.json; it must be in the hub's layout")
    return found


def _from_disk(key: str, name: str, kind: str, **more: Any) -> Any:
    """Call `transformers.<kind>.from_pretrained` with local files. Raises ConfigError with one line."""
    folder = _folder(key, name)
    loader, loud = getattr(need("transformers"), kind), logging.getLogger("transformers")
    level = loud.level
    loud.setLevel(logging.ERROR)  # `_model` checks what it warns about
    try:
        with without_bars():
            return loader.from_pretrained(str(folder), local_files_only=True, **more)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(key, f"cannot load {name}: {first}") from None
    finally:
        loud.setLevel(level)
