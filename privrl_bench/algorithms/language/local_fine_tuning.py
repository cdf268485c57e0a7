"""Local training of a language model: every user's own copy of the adapter, all users of a round at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.functional.answers import surrogate_loss
from privrl_bench.functional.optim import adam_start, adam_step, project
from privrl_bench.models.adapters import Adapter
from privrl_bench.models.language.generation import answer_logprobs

# Copies of weights that are held at once, in numbers: 2 GiB in single precision.
_ROOM = 2**29


class Lessons(NamedTuple):
    """What N users learn from, each from her own.

    tokens, seen: [N, L + T] as in `TextBatch`; old: [N, T] log probabilities under the policy that wrote the
    answers; advantages: [N, T].
    """

    tokens: Tensor
    seen: Tensor
    old: Tensor
    advantages: Tensor


class LocalOptimizerConfig(NamedTuple):
    """How every user descends: E steps, each on her whole answer."""

    epochs: int
    lr: float
    radius: float  # L2 bound of the displacement, enforced after every step
    optimizer: str  # sgd | adam, which begins afresh for every user
    ratio_clip: float | None


class AnswerTrainer:
    """Algorithm 3 of DPPG for answers: users do not meet, each has her own weights, gradient and moments.

    Args:
        model: the frozen language model.
        adapter: what is trained of it.
    """

    def __init__(self, model: Any, adapter: Adapter):
        self.model, self.adapter = model, adapter

    def logprobs(self, vector: Tensor | None, tokens: Tensor, seen: Tensor, steps: int) -> Tensor:
        """[N, T] of the answers' tokens under a vector [size]; None: under the frozen start."""
        weights = None if vector is None else self.adapter.weights(vector)
        return answer_logprobs(self.model, weights, tokens, seen, steps)

    def losses(
        self, trained: Tensor, fixed: Tensor, lessons: Lessons, ratio_clip: float | None
    ) -> Tensor:
        """[N] losses of N answers under one vector, `fixed` and then `trained`."""
        steps = lessons.old.shape[-1]
        vector = torch.cat([fixed, trained])
        logprobs = self.logprobs(vector, lessons.tokens, lessons.seen, steps)
        mask = lessons.seen[:, -steps:]
        return surrogate_loss(logprobs, lessons.old, lessons.advantages, mask, ratio_clip)

    def gradients(self, ratio_clip: float | None, users: int) -> Callable[..., Tensor]:
        """(trained [N, P], fixed, lessons of N) -> [N, P] gradients, every user's at her own vector."""

        def one(trained: Tensor, fixed: Tensor, lessons: Lessons) -> Tensor:
            alone = Lessons(*(x[None] for x in lessons))
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
        """Numbers of the weights that every user has a copy of."""
        own = dict(self.model.named_parameters())
        return max(1, sum(own[name].numel() for name in self.adapter.names))

    def __call__(self, vector: Tensor, lessons: Lessons, descent: LocalOptimizerConfig) -> Tensor:
        """[N, P] displacement of every user after her E steps from `vector` [size]."""
        count, trained = len(lessons.tokens), self.adapter.trained
        fixed, start = vector.split([len(vector) - trained, trained])
        gradients = self.gradients(descent.ratio_clip, count)
        moved = torch.zeros(count, trained, device=vector.device, dtype=vector.dtype)
        adam = adam_start(moved)
        for _ in range(descent.epochs):
            grad = gradients(start + moved, fixed, lessons)
            if descent.optimizer == "adam":
                moved, adam = adam_step(moved, grad, adam, descent.lr)
            else:
                moved = moved - descent.lr * grad
            moved = project(moved, descent.radius)
        return moved
