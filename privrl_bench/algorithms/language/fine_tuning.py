"""What DPPG and PPO on texts share: the adapter, rewards of answers, what the guarantee takes as public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.algorithms.language.local_fine_tuning import AnswerTrainer, Lessons
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import require, require_choice
from privrl_bench.functional.answers import reward_to_go, token_rewards
from privrl_bench.functional.rng import Streams
from privrl_bench.models.adapters import Adapter, AllWeights, Lora
from privrl_bench.models.language.export import save_adapter, save_model
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, TextBatch


@dataclass
class TextAlgoConfig(AlgoConfig):
    """Settings that algorithms on texts share."""

    texts: ClassVar[bool] = True
    local: ClassVar[bool] = False
    takes_episodes: ClassVar[bool] = True

    gamma: float = 1.0  # an answer has one score, at its end
    adapter: str = "lora"  # lora | all: every weight
    rank: int = 16  # of a LoRA
    alpha: float = 16.0  # of a LoRA: its change is scaled by alpha / rank
    targets: str = "attention"  # of a LoRA: attention: the fused c_attn | linear: all linear layers
    lora_trains: str = "b"  # b: A stays as drawn | both
    kl_coef: float = 0.05  # of the penalty to the frozen start; fixed, never adapted to data
    lr: float = 0.1
    epochs: int = 4  # E, passes over a round's answers

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.gamma", self.gamma == 1, "1: an answer has one score, at its end", self.gamma)
        require_choice("algo.adapter", self.adapter, ("lora", "all"))
        require_choice("algo.targets", self.targets, ("attention", "linear"))
        require_choice("algo.lora_trains", self.lora_trains, ("b", "both"))
        require("algo.rank", self.rank >= 1, "a whole number >= 1", self.rank)
        require("algo.epochs", self.epochs >= 1, "a whole number >= 1", self.epochs)
        for key in ("alpha", "lr"):
            value = getattr(self, key)
            require(f"algo.{key}", math.isfinite(value) and value > 0, "> 0", value)
        ok = math.isfinite(self.kl_coef) and self.kl_coef >= 0
        require("algo.kl_coef", ok, ">= 0", self.kl_coef)


def make_adapter(config: TextAlgoConfig, model: Any) -> Adapter:
    """What `algo.adapter` names."""
    if config.adapter == "all":
        return AllWeights(model)
    return Lora(model, config.rank, config.alpha, config.targets, config.lora_trains)


class TextAlgorithm(Algorithm):
    """The frame: one block, the adapter's trained numbers; `actor` [R, size] is the adapter as a whole."""

    def __init__(self, config: Any, setup: AlgorithmContext):
        assert setup.sources.task is not None
        self.config = config
        self.task = setup.sources.task
        self.adapter = make_adapter(config, self.task.model)
        self.trainer = AnswerTrainer(self.task.model, self.adapter)
        self._setup = setup

    def blocks(self) -> tuple[Block, ...]:
        """One: what of the adapter is trained."""
        return (Block("actor", self.adapter.trained, self._setup.privacy.clip),)

    def unit(self) -> Unit:
        """A user is the review of one place; `collectors/prompts.py` has every place once."""
        return Unit("one private review (its prompt, answer and score), used once", 1)

    def notes(self) -> dict[str, str]:
        """What is there before training is public, and how many reviews there are."""
        return {
            "reviews": f"{len(self.task.prompts_train)} places, in a public order, are taken as public; "
            "a neighbour has no review in one of them (zero-out), or another private one (replace-one); "
            "the public reviews, chosen by a hash of each one's identifier or text, are for evaluation "
            "and unprotected",
            "start model and classifier": "taken as public: what they, the tokenizer and the evaluation "
            "prompts tell of the people whose texts they were made from is outside epsilon, which is for "
            "this training alone (lvwerra/gpt2-imdb and distilbert-imdb learned from IMDB's reviews "
            "themselves)",
        }

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: the start model as it is."""
        return State(
            0, {"actor": torch.stack([self.adapter.init(s.torch("init", 0)) for s in streams])}
        )

    def learning_rate(self, round_index: int) -> float:
        """Step size of a round."""
        return float(self.config.lr)

    def lessons(self, vector: Tensor, users: TextBatch, r: int) -> tuple[Lessons, Tensor]:
        """What replica r's users learn from: old log probabilities, and the reward from each token on.

        Row u is a function of user u's data and of `vector` [size].

        Returns: (lessons, with the reward to go [U, T] as advantages; log ratio to the start [U, T]).
        """
        where = self.task.model.device
        tokens, seen, mask = (x[r].to(where) for x in (users.tokens, users.seen, users.mask))
        scores = torch.where(users.valid[r], users.scores[r], 0.0).to(where)
        steps = mask.shape[-1]
        with torch.no_grad():
            old = self.trainer.logprobs(vector, tokens, seen, steps)
            start = self.trainer.logprobs(None, tokens, seen, steps)
        rewards = token_rewards(scores, old, start, mask, self.config.kl_coef)
        return Lessons(tokens, seen, old, reward_to_go(rewards)), old - start

    def moved(self, actor: Tensor, change: Tensor) -> Tensor:
        """[R, size] adapters after a change [R, trained] of what is trained."""
        fixed = actor.shape[-1] - change.shape[-1]
        return actor + torch.nn.functional.pad(change, (fixed, 0))

    def export(self, state: State, r: int, folder: Path) -> list[Path]:
        """The adapter for peft, or the whole model, from released and public numbers."""
        vector = self.actor(state)[r]
        if isinstance(self.adapter, Lora):
            save_adapter(folder / "adapter", self.adapter, vector, self.task.model)
            return [folder / "adapter"]
        save_model(folder / "model", self.adapter.weights, vector, self.task)
        return [folder / "model"]
