"""PPO fine-tunes a language model on everybody's pooled answers: the non-private reference.

Source: Schulman et al. 2017 with the reward of TRL's sentiment example (score of the answer, KL penalty per
token). There is no value head: the baseline is the batch's mean reward at each place of an answer, and
advantages are divided by their deviation over the batch. The KL coefficient is fixed, as in `dppg_text`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.language.fine_tuning import TextAlgorithm
from privrl_bench.algorithms.language.local_fine_tuning import Lessons
from privrl_bench.algorithms.policy_gradient.pooled import POOLED
from privrl_bench.functional.optim import Adam, adam_step, limit_norm
from privrl_bench.functional.rng import Streams
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, TextBatch


class PpoText(TextAlgorithm):
    """See the module's text. One row for each replica, neither clipped nor noised: no privacy."""

    def caveats(self) -> dict[str, str]:
        """Everything: nothing is clipped or noised."""
        return {POOLED: "everybody's data enter the parameters without clip or noise"}

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`; with Adam's moments."""
        state = super().init(streams)
        for name in ("m", "v"):
            state.tensors[name] = torch.zeros(len(streams), self.adapter.trained)
        return state

    def local(  # type: ignore[override]  # its users have texts
        self, state: State, users: TextBatch, streams: list[Streams]
    ) -> Contribution:
        """One row for each replica: the change of the adapter on everybody's answers."""
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
        """(change [P], Adam's moments) of replica r after E passes of clipped-surrogate minibatches."""
        config, where = self.config, self.task.model.device
        vector = state.tensors["actor"][r].to(where)
        lessons, _ = self.lessons(vector, users, r)
        present = users.mask[r].any(-1).to(where)
        lessons, mask = Lessons(*(x[present] for x in lessons)), users.mask[r].to(where)[present]
        lessons = lessons._replace(advantages=whitened(lessons.advantages, mask))
        trained = self.adapter.trained
        fixed, start = vector.split([len(vector) - trained, trained])
        count = len(mask)
        size = max(1, count // config.minibatches)
        m, v = (state.tensors[name][r].to(where) for name in ("m", "v"))
        adam = Adam(m, v, state.round * config.epochs * config.minibatches)
        source = stream.torch("local", state.round)
        now = start

        def loss(point: Tensor, batch: Lessons) -> Tensor:
            return self.trainer.losses(point, fixed, batch, config.ratio_clip).mean()

        for _ in range(config.epochs):
            order = torch.randperm(count, generator=source).to(where)
            for rows in order[: size * config.minibatches].view(-1, size):
                grad = torch.func.grad(loss)(now, Lessons(*(x[rows] for x in lessons)))
                (grad,) = limit_norm([grad], config.max_grad_norm)
                now, adam = adam_step(now, grad, adam, config.lr)
        return (now - start).cpu(), adam.m.cpu(), adam.v.cpu()

    def server(self, state: State, released: Released) -> State:
        """Take over the new tensors."""
        tensors = dict(state.tensors) | released.bypass[POOLED]
        tensors["actor"] = self.moved(state.tensors["actor"], released.values["actor"])
        return State(state.round + 1, tensors)


def whitened(rewards: Tensor, mask: Tensor) -> Tensor:
    """[U, T] less the mean over users at each place, divided by the deviation over all tokens; mixes users."""
    weight = mask.to(rewards.dtype)
    mean = (rewards * weight).sum(0) / weight.sum(0).clamp_min(1.0)
    centred = (rewards - mean) * weight
    variance = (centred**2).sum() / weight.sum().clamp_min(1.0)
    return centred / (variance.sqrt() + 1e-8)


ALGORITHM = PpoText
