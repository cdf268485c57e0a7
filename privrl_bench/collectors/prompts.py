"""Users who bring a prompt, and the answers that a released policy gives them.

Stands where `collectors/simulated.py` stands for simulators. A user is one place of `text.prompts.prompts_of`, and comes
once in a run, in the public order of places. What a user leaves is a `TextBatch`; one with an empty prompt is
absent: not valid, and leaves nothing.

A user's answer and score depend on their prompt, their own random numbers and the policy: prompts are padded
to a public width, no user is grouped with others by length, and an absent user is computed as the others are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.functional.rng import Streams
from privrl_bench.models.adapters import Adapter
from privrl_bench.models.language.generation import Answers, generate
from privrl_bench.models.language.task import TextTask
from privrl_bench.types import TextBatch


class Answerer:
    """One policy's answers to prompts, and their scores. Args as `PromptCollector`."""

    def __init__(self, task: TextTask, adapter: Adapter):
        self.task, self.adapter = task, adapter

    def __call__(
        self, vector: Tensor, prompts: Sequence[list[int]], source: torch.Generator
    ) -> tuple[Answers, Tensor]:
        """Answers to B prompts under a vector [size], and their scores [B] (float32, on the CPU)."""
        task = self.task
        uniforms = torch.rand(len(prompts), task.new_tokens, generator=source)
        with torch.no_grad():
            weights = self.adapter.weights(vector.to(task.model.device))
        found = generate(task.model, weights, list(prompts), task.new_tokens, uniforms, task.width)
        return found, task.rewards(found)

    def batch(
        self,
        actor: Tensor,
        prompts: Sequence[Sequence[list[int]]],
        sources: list[torch.Generator],
        users: int,
    ) -> TextBatch:
        """Answers of R policies `actor` [R, size], each to U = `users` prompts, or to none.

        An empty prompt is an absent user: not valid, and zero everywhere. The model is asked about the
        end-of-text token in their place, so that the others' numbers come from the same operations to the last
        bit.
        """
        task, replicas, steps = self.task, len(actor), self.task.new_tokens
        first = (replicas, users)
        batch = TextBatch(
            tokens=torch.zeros(*first, task.width + steps, dtype=torch.long),
            seen=torch.zeros(*first, task.width + steps, dtype=torch.bool),
            mask=torch.zeros(*first, steps, dtype=torch.bool),
            scores=torch.zeros(first),
            valid=torch.zeros(first, dtype=torch.bool),
        )
        for r in range(replicas):  # one by one, so that nothing depends on how many there are
            if not prompts[r]:
                continue
            there = torch.tensor([bool(prompt) for prompt in prompts[r]])
            asked = [prompt or [task.eos] for prompt in prompts[r]]
            found, scores = self(actor[r], asked, sources[r])
            batch.tokens[r] = torch.where(there[:, None], found.tokens.cpu(), 0)
            batch.seen[r] = found.mask.cpu() & there[:, None]
            batch.mask[r] = found.answer_mask.cpu() & there[:, None]
            batch.scores[r] = torch.where(there, scores, 0.0)
            batch.valid[r] = there & torch.isfinite(scores)
        return batch


class PromptCollector:
    """Rounds of users with prompts, by the interface of `rollout.SimulatedCollector`.

    Args:
        config: the environment.
        task: models and prompts.
        adapter: from an actor's vector to weights.
        streams: random streams of each replica (R of them).
        users: U of a round.
    """

    def __init__(
        self,
        config: EnvConfig,
        task: TextTask,
        adapter: Adapter,
        streams: list[Streams],
        users: int,
    ):
        self.shape = (len(streams), users, task.new_tokens)
        self.scaler = SignalScaler(config, len(streams), 1, 1, 1.0)  # scales nothing: a check
        self.answers = Answerer(task, adapter)
        self._streams = streams
        # The leak test's: whether somebody else is in a place, and what she wrote.
        self.instead: Callable[[TextBatch], TextBatch] = lambda users: users

    def collect(self, actor: Tensor, round_index: int, cohort: list[int]) -> TextBatch:
        """One round of users.

        Args:
            actor: [R, size] adapters.
            round_index: from 0; says whose turn it is.
            cohort: number of users of each replica: U, or 0 for one that has ended.
        """
        users, everyone = self.shape[1], self.answers.task.prompts_train
        here = everyone[round_index * users : (round_index + 1) * users]
        prompts = [here if size else [] for size in cohort]
        sources = [s.torch("policy", round_index) for s in self._streams]
        batch = self.answers.batch(actor, prompts, sources, users)
        for r in range(len(cohort)):
            scores = batch.scores[r][batch.valid[r]]
            batch.stats.append(
                {
                    "train/return_mean": float(scores.mean()) if len(scores) else math.nan,
                    "train/episodes": float(len(scores)),
                    "train/invalid_users": float(sum(map(bool, prompts[r])) - len(scores)),
                }
            )
        return self.instead(batch)

    def get_state(self) -> dict[str, Tensor]:
        """Nothing: a round is a function of its number and the policy."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Nothing to restore."""
        return True

    def close(self) -> None:
        """Nothing to free."""


def public_answers(
    task: TextTask, streams: list[Streams]
) -> Callable[[Adapter, int], Callable[[Tensor, int], TextBatch]]:
    """(adapter, how many) -> (actor [R, size], round) -> answers to the first evaluation prompts.

    The prompts are public, and on streams that no user has.
    """

    def of(adapter: Adapter, count: int) -> Callable[[Tensor, int], TextBatch]:
        answers = Answerer(task, adapter)
        prompts = [task.prompts_eval[:count]] * len(streams)

        def ask(actor: Tensor, round_index: int) -> TextBatch:
            sources = [s.public.torch("policy", round_index) for s in streams]
            return answers.batch(actor, prompts, sources, count)

        return ask

    return of
