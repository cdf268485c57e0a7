"""PPO for fine-tuning a language model on the pooled answers of all users: the non-private reference.

There is no value head: the baseline is the batch's mean reward at each token position, and advantages are
divided by their standard deviation over the batch. The KL coefficient is fixed, as in `dppg_text`.

Source:
    Schulman et al. 2017 with the reward of TRL's sentiment example (score of the answer, KL penalty per
    token).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmTerms
from privrl_bench.algorithms.pooled_algorithm import POOLED, POOLED_CAVEAT
from privrl_bench.functional.optim import Adam, adam_step, limit_norm
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.text.fine_tuning import AnswerBatch, TextAlgorithm
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, TextBatch


class PpoText(TextAlgorithm):
    """PPO on texts. One row per replica, neither clipped nor noised: not private."""

    def terms(self) -> AlgorithmTerms:
        """See `TextAlgorithm.terms`; nothing is clipped or noised."""
        return replace(super().terms(), caveats=POOLED_CAVEAT)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`; also Adam's moments."""
        state = super().init(streams)
        for name in ("m", "v"):
            state.tensors[name] = torch.zeros(len(streams), self.adapter.trained)
        return state

    def user_update(self, state: State, users: TextBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: one row per replica, the adapter's change on all users' answers."""
        found = [self._update(state, users, r, s) for r, s in enumerate(streams)]
        change, m, v = (torch.stack(x) for x in zip(*found, strict=True))
        absent = ~users.mask.any(-1)
        usable = (users.valid | absent).all(dim=1) & torch.isfinite(change).all(-1)
        keep = usable[:, None]
        moments = {
            "m": torch.where(keep, m, state.tensors["m"]),
            "v": torch.where(keep, v, state.tensors["v"]),
        }
        return Contribution({"actor": change[:, None]}, keep, {POOLED: moments})

    def _update(
        self, state: State, users: TextBatch, r: int, stream: Streams
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Change [P] and Adam's moments of replica r after E epochs of minibatches."""
        config, where = self.config, self.task.model.device
        vector = state.tensors["actor"][r].to(where)
        batch, _ = self.answer_batch(vector, users, r)
        present = users.mask[r].any(-1).to(where)
        batch, mask = AnswerBatch(*(x[present] for x in batch)), users.mask[r].to(where)[present]
        batch = batch._replace(advantages=whitened(batch.advantages, mask))
        trained = self.adapter.trained
        fixed, start = vector.split([len(vector) - trained, trained])
        count = len(mask)
        size = max(1, count // config.minibatches)
        m, v = (state.tensors[name][r].to(where) for name in ("m", "v"))
        adam = Adam(m, v, state.round * config.epochs * config.minibatches)
        source = stream.torch("user_update", state.round)
        now = start

        def loss(point: Tensor, minibatch: AnswerBatch) -> Tensor:
            return self.losses(point, fixed, minibatch, config.ratio_clip).mean()

        for _ in range(config.epochs):
            order = torch.randperm(count, generator=source).to(where)
            for rows in order[: size * config.minibatches].view(-1, size):
                grad = torch.func.grad(loss)(now, AnswerBatch(*(x[rows] for x in batch)))
                (grad,) = limit_norm([grad], config.max_grad_norm)
                now, adam = adam_step(now, grad, adam, config.lr)
        return (now - start).cpu(), adam.m.cpu(), adam.v.cpu()

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: replace the state's tensors."""
        tensors = dict(state.tensors) | released.bypass[POOLED]
        tensors["actor"] = self.moved(state.tensors["actor"], released.values["actor"])
        return State(state.round + 1, tensors)


def whitened(rewards: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean over users at each position, divide by the standard deviation; mixes users.

    Args:
        rewards: [U, T].
        mask: [U, T] bool.

    Returns:
        [U, T]; 0 outside `mask`.
    """
    weight = mask.to(rewards.dtype)
    mean = (rewards * weight).sum(0) / weight.sum(0).clamp_min(1.0)
    centred = (rewards - mean) * weight
    variance = (centred**2).sum() / weight.sum().clamp_min(1.0)
    return centred / (variance.sqrt() + 1e-8)


ALGORITHM = PpoText
