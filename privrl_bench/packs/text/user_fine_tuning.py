"""A user's training of a language model: one copy of the adapter per user, all users of a round at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.functional.answers import surrogate_loss
from privrl_bench.functional.optim import adam_start, adam_step, project
from privrl_bench.packs.text.adapters import Adapter
from privrl_bench.packs.text.generation import answer_logprobs
from privrl_bench.packs.text.text_settings import DppgTextConfig

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
