"""Base of DPPG and PPO on texts: adapter, rewards of answers, users' own steps, assumptions of the guarantee.

All users of a round train at once, each a copy of the adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms, each_replica
from privrl_bench.functional.losses import reward_to_go, surrogate_loss, token_rewards
from privrl_bench.functional.optim import adam_start, adam_step, project
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.text.adapters import Adapter, AllWeights, Lora
from privrl_bench.packs.text.generation import answer_logprobs
from privrl_bench.packs.text.text_settings import DppgTextConfig
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, TextBatch

# Elements of weight copies in memory at once: 2 GiB in single precision.
_ROOM = 2**29


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


class AnswerTrainer:
    """Algorithm 3 of DPPG for answers. Each user has separate weights, gradients and moments.

    Args:
        model: The frozen language model.
        adapter: Its trained parametrisation.
    """

    def __init__(self, model: Any, adapter: Adapter):
        self.model, self.adapter = model, adapter

    def logprobs(self, vector: Tensor | None, tokens: Tensor, seen: Tensor, steps: int) -> Tensor:
        """Return log-probabilities [N, T] of the answers under a vector [size]; None: the start model."""
        weights = None if vector is None else self.adapter.weights(vector)
        return answer_logprobs(self.model, weights, tokens, seen, steps)

    def losses(
        self, trained: Tensor, fixed: Tensor, batch: AnswerBatch, ratio_clip: float | None
    ) -> Tensor:
        """Return the losses [N] of N answers under the vector (`fixed`, `trained`)."""
        steps = batch.old.shape[-1]
        vector = torch.cat([fixed, trained])
        logprobs = self.logprobs(vector, batch.tokens, batch.seen, steps)
        mask = batch.seen[:, -steps:]
        return surrogate_loss(logprobs, batch.old, batch.advantages, mask, ratio_clip)

    def gradients(self, ratio_clip: float | None, users: int) -> Callable[..., Tensor]:
        """Return a function (trained [N, P], fixed, batch) -> gradients [N, P], each at the user's vector."""

        def one(trained: Tensor, fixed: Tensor, batch: AnswerBatch) -> Tensor:
            alone = AnswerBatch(*(x[None] for x in batch))
            return self.losses(trained, fixed, alone, ratio_clip)[0]

        some = max(1, _ROOM // self.copied)
        found: Callable[..., Tensor] = torch.func.vmap(
            torch.func.grad(one),
            in_dims=(0, None, 0),
            chunk_size=None if some >= users else some,
        )
        return found

    @property
    def copied(self) -> int:
        """Number of elements of the weights that are copied per user."""
        own = dict(self.model.named_parameters())
        return max(1, sum(own[name].numel() for name in self.adapter.names))

    def __call__(
        self, vector: Tensor, batch: AnswerBatch, config: DppgTextConfig, lr: float, radius: float
    ) -> Tensor:
        """Train every user's copy of the adapter, each step on the user's complete answer.

        Args:
            vector: [size] start.
            batch: of N users.
            config: `epochs` E, `optimizer` (adam: with new moments for every user) and `ratio_clip`.
            lr: step size.
            radius: L2 bound of the displacement, enforced after every step.

        Returns:
            [N, P] displacements.
        """
        count, trained = len(batch.tokens), self.adapter.trained
        fixed, start = vector.split([len(vector) - trained, trained])
        gradients = self.gradients(config.ratio_clip, count)
        moved = torch.zeros(count, trained, device=vector.device, dtype=vector.dtype)
        adam = adam_start(moved)
        for _ in range(config.epochs):
            grad = gradients(start + moved, fixed, batch)
            if config.optimizer == "adam":
                moved, adam = adam_step(moved, grad, adam, lr)
            else:
                moved = moved - lr * grad
            moved = project(moved, radius)
        return moved


class TextAlgorithm(Algorithm):
    """Base class. The block is the adapter's trained parameters; `actor` [R, size] is the full vector."""

    def __init__(self, config: Any, context: AlgorithmContext):
        self.config = config
        self.task = context.sources.given.task
        lora = (config.rank, config.alpha, config.targets, config.lora_trains)
        model, everything = self.task.model, config.adapter == "all"
        self.adapter: Adapter = AllWeights(model) if everything else Lora(model, *lora)
        self.trainer = AnswerTrainer(self.task.model, self.adapter)
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
            old = self.trainer.logprobs(vector, tokens, seen, steps)
            start = self.trainer.logprobs(None, tokens, seen, steps)
        rewards = token_rewards(scores, old, start, mask, self.config.kl_coef)
        return AnswerBatch(tokens, seen, old, reward_to_go(rewards)), old - start

    def moved(self, actor: Tensor, change: Tensor) -> Tensor:
        """Return adapters [R, size] after a change [R, trained] of their trained parameters."""
        fixed = actor.shape[-1] - change.shape[-1]
        return actor + torch.nn.functional.pad(change, (fixed, 0))

    def export(self, state: State, r: int, folder: Path) -> list[Path]:
        """See `Algorithm.export`: the adapter for peft, or the complete model."""
        return [self.adapter.save(folder, self.actor(state)[r], self.task)]
