"""Users with prompts, and the answers of a released policy.

A user is one place of `prompt_order.prompts_of` and joins one round of a run, in the public order
of places. A user with an empty prompt is absent: not valid, all zeros.

A user's answer and score depend on their prompt, their own random numbers and the policy. For this,
prompts are padded to a public width, users are not grouped by length, and absent users are computed
like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from privrl_bench.collectors.batches import BaseCollector, train_stats
from privrl_bench.collectors.collector import BatchShape
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.functional.rng import Streams
from privrl_bench.models.language.adapters import Adapter
from privrl_bench.models.language.generation import Answers, generate
from privrl_bench.models.language.task import TextTask
from privrl_bench.privacy.sampling.sampler import Cohort
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
        policy_params: Tensor,
        prompts: Sequence[Sequence[list[int]]],
        sources: list[torch.Generator],
        users: int,
    ) -> TextBatch:
        """Answers of R policies `policy_params` [R, size], each to U = `users` prompts, or to none.

        An empty prompt is an absent user: not valid, all zeros. The model answers the end-of-text
        token in its place, so that the other users' values come from the same operations, bit for
        bit.
        """
        task, replicas, steps = self.task, len(policy_params), self.task.new_tokens
        first = (replicas, users)
        batch = TextBatch(
            tokens=torch.zeros(*first, task.width + steps, dtype=torch.long),
            seen=torch.zeros(*first, task.width + steps, dtype=torch.bool),
            mask=torch.zeros(*first, steps, dtype=torch.bool),
            scores=torch.zeros(first),
            valid=torch.zeros(first, dtype=torch.bool),
        )
        for r in range(replicas):  # so that no value depends on how many there are
            if not prompts[r]:
                continue
            there = torch.tensor([bool(prompt) for prompt in prompts[r]])
            asked = [prompt or [task.eos] for prompt in prompts[r]]
            found, scores = self(policy_params[r], asked, sources[r])
            batch.tokens[r] = torch.where(there[:, None], found.tokens.cpu(), 0)
            batch.seen[r] = found.mask.cpu() & there[:, None]
            batch.mask[r] = found.answer_mask.cpu() & there[:, None]
            batch.scores[r] = torch.where(there, scores, 0.0)
            batch.valid[r] = there & torch.isfinite(scores)
        return batch


class PromptCollector(BaseCollector):
    """Users with prompts.

    Args:
        config: the environment.
        task: models and prompts.
        adapter: from a policy's vector to weights.
        streams: random streams of each replica (R of them).
        users: U of a round.
    """

    population = None

    def __init__(
        self,
        config: EnvConfig,
        task: TextTask,
        adapter: Adapter,
        streams: list[Streams],
        users: int,
    ):
        self.shape = BatchShape(len(streams), users, task.new_tokens)
        self.scaler = SignalScaler(config, len(streams), 1, 1, 1.0)  # scales nothing: a check
        self.answers = Answerer(task, adapter)
        self._streams = streams

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> TextBatch:
        """The next U prompts in order, answered with `policy_params` [R, size]; none where a replica ended."""
        users, everyone = self.shape.users, self.answers.task.prompts_train
        here = everyone[round_index * users : (round_index + 1) * users]
        prompts = [here if size else [] for size in cohort.sizes]
        sources = [s.torch("policy", round_index) for s in self._streams]
        batch = self.answers.batch(policy_params, prompts, sources, users)
        for r, asked in enumerate(prompts):
            scores = batch.scores[r][batch.valid[r]]
            invalid = sum(map(bool, asked)) - len(scores)
            batch.stats.append(train_stats(scores, invalid, torch.mean))
        return batch


def public_answers(
    task: TextTask, streams: list[Streams]
) -> Callable[[Adapter, int], Callable[[Tensor, int], TextBatch]]:
    """Answers that no user is involved in: to public prompts, on streams that no user has.

    Returns:
        (adapter, how many) -> (policy_params [R, size], round) -> answers to the first evaluation
        prompts.
    """

    def of(adapter: Adapter, count: int) -> Callable[[Tensor, int], TextBatch]:
        answers = Answerer(task, adapter)
        prompts = [task.prompts_eval[:count]] * len(streams)

        def ask(policy_params: Tensor, round_index: int) -> TextBatch:
            sources = [s.public.torch("policy", round_index) for s in streams]
            return answers.batch(policy_params, prompts, sources, count)

        return ask

    return of
