"""A policy over several choices at once (MultiDiscrete and MultiBinary actions)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from privrl_bench.models.cnn import make_network
from privrl_bench.models.policy import EnvActions, Sampler, Surrogate, gumbel
from privrl_bench.types import EnvSpec


class MultiCategoricalPolicy(EnvActions):
    """Independent softmax policies over the coordinates of a MultiDiscrete action.

    The network has one logit for every choice of every coordinate. Actions are numbers [..., A] from 0 on.
    """

    kernel_head: ClassVar[int | None] = None

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], network: str = "mlp"):
        assert spec.choices is not None
        self._counts = list(spec.choices)
        starts = torch.tensor([0, *self._counts]).cumsum(0)
        self._starts, self._logits = starts[:-1], int(starts[-1])
        # The coordinate that a logit belongs to.
        self._owner = torch.arange(len(self._counts)).repeat_interleave(torch.tensor(self._counts))
        self.net = make_network(spec, hidden, self._logits, network)
        self.size = self.net.size
        self._network = {"hidden": list(hidden), "network": network}

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return dict(self._network)

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [P]; actions are nearly uniform (last gain 0.01)."""
        return self.net.init(generator, last_gain=0.01)

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw Gumbel noise [*shape, number of logits]."""
        return gumbel(generator, *shape, self._logits)

    def _best(self, logits: Tensor) -> Tensor:
        """The choice [..., A] with the largest logit of every coordinate."""
        best = [x.argmax(-1) for x in logits.split(self._counts, dim=-1)]
        return torch.stack(best, dim=-1).to(logits.dtype)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        outputs = self.net.by_rows(params)
        return lambda obs, noise: self._best(outputs(obs) + noise)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions [N, B, A]."""
        return self._best(self.net.forward(params, obs))

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Log-probabilities of every choice within its coordinate, as `logits`."""
        parts = logits.split(self._counts, dim=-1)
        return torch.cat([torch.log_softmax(x, dim=-1) for x in parts], dim=-1)

    def _chosen(self, actions: Tensor) -> Tensor:
        """Places [..., A] of the chosen logits."""
        return actions.long() + self._starts.to(actions.device)

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `NetPolicy.log_prob`; actions [N, B, A]. Both are sums over the coordinates."""
        logs = self._log_probs(self.net.forward(params, obs))
        return logs.gather(-1, self._chosen(actions)).sum(-1), -(logs.exp() * logs).sum(-1)

    def surrogate_gradient(
        self, params: Tensor, batch: Surrogate, ratio_clip: float | None, entropy_coef: float
    ) -> Tensor:
        """See `NetPolicy.surrogate_gradient`; for every coordinate as `CategoricalPolicy` has it."""
        unpacked = self.net.unpack(params)
        layers = self.net.layers(unpacked, batch.obs)
        logs = self._log_probs(layers[-1])
        chosen = self._chosen(batch.actions)
        slope = batch.slope(logs.gather(-1, chosen).sum(-1), ratio_clip).unsqueeze(-1)
        p = logs.exp()
        grad = (-slope * p).scatter_add_(-1, chosen, slope.expand_as(chosen))
        terms = (p * logs).split(self._counts, dim=-1)
        entropy = -torch.stack([x.sum(-1) for x in terms], dim=-1)
        own = entropy.index_select(-1, self._owner.to(entropy.device))
        grad += (entropy_coef / logs.shape[1]) * p * (logs + own)
        return self.net.gradient(unpacked, layers, grad)
