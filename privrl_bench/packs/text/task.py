"""Models, tokenizer, prompts and reward of a text environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from privrl_bench.config.schema import MADE, EnvConfig
from privrl_bench.errors import ConfigError, require
from privrl_bench.packs.text.generation import Answers
from privrl_bench.packs.text.models import (
    SMALL,
    Scorer,
    from_disk,
    load_classifier,
    load_policy,
)
from privrl_bench.packs.text.prompt_order import prompts_of
from privrl_bench.types import EnvSpec


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
        score: From texts to scores [B], see `models.score_id`; each depends on its own text only.
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
    """Load the models and the prompts, without network access.

    Raises:
        ConfigError: A package, model or file is missing (with the command that downloads it); a model is of
            the wrong kind or has too few positions.
    """
    text = config.text
    if text.prompts not in (None, MADE) and not Path(str(text.prompts)).expanduser().exists():
        # Before models are loaded, which takes seconds.
        raise ConfigError("env.text.prompts", f"no such file or folder: {text.prompts}")
    model, tokenizer = load_policy(text.policy)
    judge, judge_tokenizer = load_classifier(text.classifier)
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
    text = config.text
    policy = str(SMALL / "policy") if text.policy == MADE else text.policy
    words = int(from_disk("env.text.policy", policy, "AutoConfig").vocab_size)
    longest = text.prompt_tokens[1] - 1 + text.new_tokens
    return EnvSpec(config.name, longest, True, words, text.new_tokens)
