"""DPPG for fine-tuning a language model: one user is one prompt with its answer.

    for every round, their number fixed in advance:
        the released policy answers U prompts; every answer is scored
        each user: E steps on their own tokens, the adapter's displacement projected onto a ball of radius clip
        adapter <- adapter + (sum of displacements + N(0, (z clip)^2 I)) / U, or an Adam step along that mean

A token's advantage is the answer's score minus `kl_coef` times the log ratios to the frozen start model from
this token on, minus a baseline. There is no value head (it would share the policy's trunk), the KL
coefficient is fixed and nothing is normalised across users: each of these would pass statistics of some users
to others without noise. Advantages are not whitened within an answer, either: all its tokens have the same
score, which whitening would remove. `algo.baseline=public` is the mean reward of the last released policy's
answers to public prompts.

Source:
    "Differentially Private Policy Gradient" (Rio, Barlier, Colin), algorithms 2 and 3 and section 6, which
    does not specify clip, batch, adapter and steps; the KL penalty is that of TRL's sentiment example.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, annealed
from privrl_bench.errors import require
from privrl_bench.functional.optim import Adam, adam_start, adam_step, project
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.text.fine_tuning import AnswerBatch, TextAlgorithm
from privrl_bench.packs.text.text_settings import DppgTextConfig
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, TextBatch

# Elements of weight copies in memory at once: 2 GiB in single precision.
_ROOM = 2**29


class DppgText(TextAlgorithm):
    """DPPG on texts. Rows of `user_update` do not mix users."""

    def __init__(self, config: DppgTextConfig, context: AlgorithmContext):
        super().__init__(config, context)
        there, asked = len(self.task.prompts_eval), config.baseline_prompts
        ok = config.baseline != "public" or asked <= there
        require("algo.baseline_prompts", ok, f"at most the {there} prompts for evaluation", asked)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`; with Adam at the server, also its moments."""
        state = super().init(streams)
        if self.config.server == "adam":
            zeros = torch.zeros(len(streams), self.adapter.trained)
            state.tensors.update(m=zeros, v=zeros.clone())
        return self._with_baseline(state)

    def user_update(self, state: State, users: TextBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: algorithm 3 for every user.

        Guarantee:
            Row u depends on user u's data and on released parameters only.
        """
        rows, seen = [], []
        for r, actor in enumerate(state.tensors["actor"]):  # replicas separately
            vector = actor.to(self.task.model.device)
            batch, ratios = self.answer_batch(vector, users, r)
            baseline = state.tensors["baseline"][r].to(vector.device)
            batch = batch._replace(advantages=batch.advantages - baseline)
            rows.append(self.displacements(vector, batch).cpu())
            here = users.mask[r].any(-1)
            kl = ratios.sum(-1).cpu()[here]
            seen.append({"train/kl": float(kl.mean()) if len(kl) else math.nan})
        return Contribution({"actor": torch.stack(rows)}, users.valid, diagnostics=seen)

    @property
    def copied(self) -> int:
        """Number of elements of the weights that are copied per user."""
        own = dict(self.task.model.named_parameters())
        return max(1, sum(own[name].numel() for name in self.adapter.names))

    def displacements(self, vector: Tensor, batch: AnswerBatch) -> Tensor:
        """Algorithm 3: train every user's copy of the adapter, each step on the complete answer.

        Each user has separate weights, gradients and moments. The L2 bound of a displacement is enforced
        after every step.

        Args:
            vector: [size] start.
            batch: of N users.

        Returns:
            [N, P] displacements.
        """
        config, lr, radius = self.config, float(self.config.lr), self._context.privacy.clip
        count, trained = len(batch.tokens), self.adapter.trained
        fixed, start = vector.split([len(vector) - trained, trained])

        def loss(trained: Tensor, fixed: Tensor, batch: AnswerBatch) -> Tensor:
            alone = AnswerBatch(*(x[None] for x in batch))
            return self.losses(trained, fixed, alone, config.ratio_clip)[0]

        some = max(1, _ROOM // self.copied)
        gradients = torch.func.vmap(
            torch.func.grad(loss),
            in_dims=(0, None, 0),
            chunk_size=None if some >= count else some,
        )
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

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: a step along the noised mean displacement, annealed to average out noise."""
        step = annealed(1.0, self.config.anneal_server, state.round, self._context.schedule.rounds)
        tensors, change = dict(state.tensors), released.values["actor"]
        if self.config.server == "adam":  # its moments depend on releases only
            before = Adam(tensors["m"], tensors["v"], state.round)
            size = self.config.server_lr
            change, after = adam_step(torch.zeros_like(change), -change, before, size, eps=1e-8)
            tensors |= {"m": after.m, "v": after.v}
        tensors["actor"] = self.moved(tensors["actor"], step * change)
        return State(state.round + 1, tensors)

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """See `Algorithm.after_release`: the baseline of the next round, from public prompts."""
        return self._with_baseline(state)

    def _with_baseline(self, state: State) -> State:
        """Add `baseline` [R, 1], which depends on public prompts and released parameters only."""
        config, actor = self.config, state.tensors["actor"]
        baseline = torch.full((len(actor), 1), float(config.baseline_value))
        if config.baseline == "public" and state.round < self._context.schedule.rounds:
            ask = self._context.sources.given.ask
            answers = ask(self.adapter, config.baseline_prompts, actor, state.round)
            baseline = torch.stack([self._mean(v, answers, r) for r, v in enumerate(actor)])
        return State(state.round, dict(state.tensors) | {"baseline": baseline})

    def _mean(self, actor: Tensor, answers: TextBatch, r: int) -> Tensor:
        """Mean reward [1] of complete answers."""
        batch, _ = self.answer_batch(actor.to(self.task.model.device), answers, r)
        whole = batch.advantages[:, 0].cpu()
        return whole[answers.valid[r]].mean(0, keepdim=True)


ALGORITHM = DppgText
