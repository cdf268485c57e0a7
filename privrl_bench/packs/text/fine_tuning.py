"""Base of DPPG and PPO on texts: adapter, rewards of answers, losses, assumptions of the guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms, each_replica
from privrl_bench.functional.losses import surrogate_loss
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.text.adapters import Adapter, AllWeights, Lora
from privrl_bench.packs.text.generation import answer_logprobs
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, TextBatch


def token_rewards(
    scores: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, kl_coef: float
) -> Tensor:
    """Compute the reward of each token: the score at the last token, minus a KL penalty at every token.

    Args:
        scores: [...] of complete answers.
        logprobs: [..., T] log-probabilities of the tokens under the policy that generated them.
        reference: [..., T] log-probabilities under the frozen start model.
        mask: [..., T] bool, true for tokens of the answer, which come first.
        kl_coef: Fixed weight of the penalty, which is the log ratio of policy to reference.

    Returns:
        [..., T]; 0 outside `mask`.

    Source:
        Ziegler et al. 2019, equation 2, applied per token as in TRL's PPOTrainer.
    """
    rewards = torch.where(mask, -kl_coef * (logprobs - reference), 0.0)
    last = mask & ~torch.nn.functional.pad(mask[..., 1:], (0, 1))
    return rewards + torch.where(last, scores[..., None], 0.0)


class AnswerBatch(NamedTuple):
    """Training data of N users.

    Attributes:
        tokens: [N, L + T], see `TextBatch`.
        seen: [N, L + T], see `TextBatch`.
        old: [N, T] log-probabilities under the policy that generated the answers.
        advantages: [N, T].
    """

    tokens: Tensor
    seen: Tensor
    old: Tensor
    advantages: Tensor


class TextAlgorithm(Algorithm):
    """Base class. The block is the adapter's trained parameters; `actor` [R, size] is the full vector."""

    def __init__(self, config: Any, context: AlgorithmContext):
        self.config = config
        self.task = context.sources.given.task
        lora = (config.rank, config.alpha, config.targets, config.lora_trains)
        model, everything = self.task.model, config.adapter == "all"
        self.adapter: Adapter = AllWeights(model) if everything else Lora(model, *lora)
        self._context = context

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: the trained parameters of the adapter."""
        return (Block("actor", self.adapter.trained, self._context.privacy.clip),)

    def terms(self) -> AlgorithmTerms:
        """The unit is the review at one index; `users/prompts.py` uses each index once."""
        unit = Unit("one private review (its prompt, answer and score), used once", 1)
        notes = {
            "reviews": f"their number, {len(self.task.prompts_train)}, and order are assumed to be public; "
            "a neighbour has no review at one index (zero-out), or another private one (replace-one); "
            "the public reviews, selected by a hash of each one's identifier or text, are for evaluation "
            "and not protected",
            "start model and classifier": "assumed to be public: what they, the tokenizer and the evaluation "
            "prompts reveal about the authors of their training data is not covered by epsilon, which is for "
            "this training only (lvwerra/gpt2-imdb and distilbert-imdb were trained on IMDB's reviews "
            "themselves)",
        }
        return AlgorithmTerms(unit=unit, notes=notes)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: the unchanged start model."""
        return State(
            0, {"actor": torch.stack([self.adapter.init(s.torch("init", 0)) for s in streams])}
        )

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The constant step size."""
        return each_replica(state, lr=float(self.config.lr))

    def answer_batch(self, vector: Tensor, users: TextBatch, r: int) -> tuple[AnswerBatch, Tensor]:
        """Compute the training data of replica r's users. Row u depends on user u's data and `vector` only.

        Args:
            vector: [size] of the adapter.
            users: Of a round.
            r: Replica.

        Returns:
            The batch, with the reward to go [U, T] as advantages, and the log ratios to the start model [U, T].
        """
        where = self.task.model.device
        tokens, seen, mask = (x[r].to(where) for x in (users.tokens, users.seen, users.mask))
        scores = torch.where(users.valid[r], users.scores[r], 0.0).to(where)
        steps = mask.shape[-1]
        with torch.no_grad():
            old = self.logprobs(vector, tokens, seen, steps)
            start = self.logprobs(None, tokens, seen, steps)
        rewards = token_rewards(scores, old, start, mask, self.config.kl_coef)
        to_go = rewards.flip(-1).cumsum(-1).flip(-1)
        return AnswerBatch(tokens, seen, old, to_go), old - start

    def moved(self, actor: Tensor, change: Tensor) -> Tensor:
        """Return adapters [R, size] after a change [R, trained] of their trained parameters."""
        fixed = actor.shape[-1] - change.shape[-1]
        return actor + torch.nn.functional.pad(change, (fixed, 0))

    def export(self, state: State, r: int, folder: Path) -> list[Path]:
        """See `Algorithm.export`: the adapter for peft, or the complete model."""
        return [self.adapter.save(folder, self.actor(state)[r], self.task)]

    def logprobs(self, vector: Tensor | None, tokens: Tensor, seen: Tensor, steps: int) -> Tensor:
        """Return log-probabilities [N, T] of the answers under a vector [size]; None: the start model."""
        weights = None if vector is None else self.adapter.weights(vector)
        return answer_logprobs(self.task.model, weights, tokens, seen, steps)

    def losses(
        self, trained: Tensor, fixed: Tensor, batch: AnswerBatch, ratio_clip: float | None
    ) -> Tensor:
        """Return the losses [N] of N answers under the vector (`fixed`, `trained`)."""
        steps = batch.old.shape[-1]
        vector = torch.cat([fixed, trained])
        logprobs = self.logprobs(vector, batch.tokens, batch.seen, steps)
        mask = batch.seen[:, -steps:]
        return surrogate_loss(logprobs, batch.old, batch.advantages, mask, ratio_clip)
