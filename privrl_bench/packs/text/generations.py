"""Evaluation of a language model by its answers to public prompts: score, KL, perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, Evaluator
from privrl_bench.evaluation.objective import RETURN
from privrl_bench.evaluation.returns import ReturnEvaluation
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.text.adapters import Adapter
from privrl_bench.packs.text.answered import Answerer
from privrl_bench.packs.text.generation import answer_logprobs
from privrl_bench.packs.text.scores import answer_perplexity
from privrl_bench.packs.text.task import TextTask

SAMPLES = 4  # texts that an evaluation shows


class GenerationEvaluator(Evaluator):
    """Answers of released parameters on the evaluation streams; see `Evaluator`.

    The prompts are public and the same in every evaluation: the first E of the task's evaluation
    part.

    Args:
        task, adapter, streams: as `PromptCollector`.
        episodes: E.
    """

    judges = "text_policy"
    objective = RETURN
    note = "evaluation prompts are public"
    shows_start = True

    @classmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """See `Evaluator.of`."""
        users, episodes = parts.users, parts.users.config.eval.episodes
        made = (users.task, parts.algo.adapter, parts.streams, episodes)
        return BackgroundEvaluator(cls, *made, aside=False)

    def __init__(self, task: TextTask, adapter: Adapter, streams: list[Streams], episodes: int):
        self._answers = Answerer(task, adapter)
        self._task = task
        self._streams = streams
        self._prompts = task.prompts_eval[:episodes]

    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> list[ReturnEvaluation]:
        """E answers of each replica; those `ended` have none, and returns of 0.

        A return is the score of an answer, a length its number of tokens.
        """
        nothing = np.zeros(len(self._prompts))
        return [
            ReturnEvaluation(nothing, nothing.astype(np.int64))
            if r in ended
            else self._one(vector, s.torch("eval_policy", round_index))
            for r, (vector, s) in enumerate(zip(policy_params, self._streams, strict=True))
        ]

    def _one(self, vector: Tensor, source: torch.Generator) -> ReturnEvaluation:
        task = self._task
        uniforms = torch.rand(len(self._prompts), task.new_tokens, generator=source)
        found, scores = self._answers(vector, self._prompts, uniforms)
        with torch.no_grad():
            start = answer_logprobs(task.model, None, found.tokens, found.mask, task.new_tokens)
        more = {
            "eval/kl": float((found.logprobs - start).double().sum(-1).mean()),
            "eval/perplexity": answer_perplexity(task.model, found),
        }
        prompts = self._prompts[:SAMPLES]
        rows = [row[len(p) :] for row, p in zip(found.rows(), prompts, strict=False)]
        shown = zip(task.decode(prompts), task.decode(rows), scores.tolist(), strict=False)
        samples = [{"prompt": p, "answer": a, "score": round(s, 4)} for p, a, s in shown]
        lengths = found.answer_mask.sum(-1).cpu().numpy()
        invalid = int((~torch.isfinite(scores)).sum())
        return ReturnEvaluation(scores.double().numpy(), lengths, more, samples, invalid)


EVALUATOR = GenerationEvaluator
