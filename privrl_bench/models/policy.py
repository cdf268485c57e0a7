"""Stochastic policies as pure functions of flat parameter vectors and observations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import UserCounters, uniform
from privrl_bench.kernels.policy_heads import CATEGORICAL, GAUSSIAN
from privrl_bench.models.cnn import Network, make_network
from privrl_bench.types import EnvSpec

_LOG_2PI = math.log(2.0 * math.pi)


Sampler = Callable[[Tensor, Tensor], Tensor]


class Bounds(NamedTuple):
    """Actions x [..., A] become centre + half * min(max(x, least), most); arrays [A]."""

    least: np.ndarray
    most: np.ndarray
    centre: np.ndarray
    half: np.ndarray

    def apply(self, actions: np.ndarray) -> np.ndarray:
        """Map actions."""
        cut = np.minimum(np.maximum(actions, self.least), self.most)
        return np.asarray(self.centre + self.half * cut)


def is_greedy(probabilities: Callable[[Tensor], Tensor], obs_dim: int) -> bool:
    """Whether probabilities [n, A] of observations [n, D] are 0 and 1, in 100 states from [-2, 2]^D."""
    states = 4.0 * torch.rand(100, obs_dim, generator=torch.Generator().manual_seed(0)) - 2.0
    return bool((probabilities(states).max(-1).values == 1.0).all())


class Policy(Protocol):
    """Interface of policies for collectors and algorithms. N parameter vectors, B observations of each."""

    size: int

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [P]."""
        ...

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw the noise of `sampler` in advance, so that each replica has its own stream."""
        ...

    def sampler(self, params: Tensor) -> Sampler:
        """Return a function (obs [N, B, D], noise [N, B, ...]) -> actions for params [N, P].

        It is called once for every step of a round or an evaluation, in order.
        """
        ...

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions."""
        ...

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions to the environment's action space."""
        ...

    def bounds(self) -> Bounds | None:
        """Return how `to_env` maps actions; None: they stay as they are."""
        ...

    def arguments(self) -> dict[str, Any]:
        """Return what the constructor takes besides the environment's facts, for `policy.pt`."""
        ...


class NetPolicy(Policy, Protocol):
    """A policy with a network; further parameters follow those of the network."""

    net: Network
    kernel_head: ClassVar[int | None]  # loss in `kernels.mlp_training`; None: not compiled

    rest_fisher: ClassVar[float]  # Fisher information of each parameter that is not the network's

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the actions and the entropies, [N, B]; differentiable in params."""
        ...

    def score_roots(self, params: Tensor, outputs: Tensor) -> Tensor:
        """Return [B, K, out]: E[g g'] of g, the gradient of log pi(a) in the network's outputs [B, out].

        It is the sum over K of the outer products of the rows; params [P].
        """
        ...


def gumbel(generator: torch.Generator | UserCounters, *shape: int) -> Tensor:
    """Draw Gumbel noise [*shape]: the argmax of logits + noise is a softmax sample."""
    drawn = uniform(generator, *shape)
    return -torch.log(-torch.log(drawn.clamp(1e-10, 1 - 1e-7)))


class EnvActions:
    """Base of policies whose actions are those of the environment."""

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions unchanged."""
        return actions

    def bounds(self) -> None:
        """See `Policy.bounds`."""


class ParameterFree(EnvActions):
    """Base of policies without parameters."""

    size = 0

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`; they are not written to files."""
        return {}

    def init(self, generator: torch.Generator) -> Tensor:
        """Return an empty vector."""
        return torch.zeros(0)


class SoftmaxPolicy(EnvActions, ABC):
    """Base of policies that choose by a softmax of the network's outputs.

    Args:
        spec: of the environment.
        hidden: widths of the layers.
        network: `algo.network`, mlp or cnn.
        logits: how many outputs there are.
    """

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], network: str, logits: int):
        self.net = make_network(spec, hidden, logits, network)
        self._network = {"hidden": list(hidden), "network": network}
        self.size = self.net.size
        self._logits = logits

    rest_fisher: ClassVar[float] = 0.0

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return dict(self._network)

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [P]; actions are nearly uniform (last gain 0.01)."""
        return self.net.init(generator, last_gain=0.01)

    def draw(self, generator: torch.Generator | UserCounters, *shape: int) -> Tensor:
        """Draw Gumbel noise [*shape, number of logits]."""
        return gumbel(generator, *shape, self._logits)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        outputs = self.net.by_rows(params)
        return lambda obs, noise: self._best(outputs(obs) + noise)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self._best(self.net.forward(params, obs))

    @abstractmethod
    def _best(self, logits: Tensor) -> Tensor:
        """Return the actions with the largest logits."""

    def _sizes(self) -> list[int]:
        """How many logits each choice of an action has."""
        return [self._logits]

    @abstractmethod
    def _log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-probability of every choice, as `logits`."""

    @abstractmethod
    def _chosen(self, actions: Tensor) -> Tensor:
        """Return the places of the chosen logits, [..., number of choices that an action has]."""

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `NetPolicy.log_prob`; both are sums over the choices of an action."""
        logs = self._log_probs(self.net.forward(params, obs))
        return logs.gather(-1, self._chosen(actions)).sum(-1), -(logs.exp() * logs).sum(-1)

    def score_roots(self, params: Tensor, outputs: Tensor) -> Tensor:
        """See `NetPolicy.score_roots`: sqrt(p_k) (e_k - p of the choice that k is of)."""
        probs = self._log_probs(outputs).exp()
        of_choice = torch.block_diag(*(torch.ones(n, n) for n in self._sizes())).to(probs)
        each = torch.eye(self._logits).to(probs) - probs.unsqueeze(-2) * of_choice
        return probs.sqrt().unsqueeze(-1) * each


class CategoricalPolicy(SoftmaxPolicy):
    """Softmax policy over discrete actions."""

    kernel_head: ClassVar[int | None] = CATEGORICAL

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], network: str = "mlp"):
        super().__init__(spec, hidden, network, spec.actions)

    def probabilities(self, params: Tensor, obs: Tensor, horizon: int) -> Tensor:
        """Return action probabilities [N, H, B, A] at every step of an episode; obs [N, B, D]."""
        probs = torch.softmax(self.net.forward(params, obs), dim=-1)
        return probs.unsqueeze(1).expand(-1, horizon, -1, -1)

    def _best(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def _log_probs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, dim=-1)

    def _chosen(self, actions: Tensor) -> Tensor:
        return actions.long().unsqueeze(-1)


class GaussianPolicy:
    """Independent Gaussians with a state-independent log standard deviation.

    Actions are clipped to [-1, 1] in every coordinate and then mapped to the environment's box (identical to
    clipping on Hopper and HalfCheetah). Unbounded coordinates are not clipped. Without `spec.stretch`, actions
    are in the box's units and clipped at its bounds.
    """

    kernel_head: ClassVar[int | None] = GAUSSIAN
    rest_fisher: ClassVar[float] = 2.0  # of a log standard deviation

    def __init__(
        self,
        spec: EnvSpec,
        hidden: tuple[int, ...],
        network: str = "mlp",
        log_std_init: float = 0.0,
    ):
        self.net = make_network(spec, hidden, spec.actions, network)
        self._network = {"hidden": list(hidden), "network": network}
        self._log_std_init = log_std_init
        self.size = self.net.size + spec.actions
        self._actions = spec.actions
        assert spec.action_low is not None
        assert spec.action_high is not None
        self._bounded = np.isfinite(spec.action_low) & np.isfinite(spec.action_high) & spec.stretch
        low = np.where(self._bounded, spec.action_low, -1.0)
        high = np.where(self._bounded, spec.action_high, 1.0)
        # A coordinate with a single bound is not mapped, but clipped at that bound.
        self._least = np.where(self._bounded, -1.0, spec.action_low).astype(np.float32)
        self._most = np.where(self._bounded, 1.0, spec.action_high).astype(np.float32)
        self._centre = ((high + low) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)

    def arguments(self) -> dict[str, Any]:
        """See `Policy.arguments`."""
        return dict(self._network)

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params.split([self.net.size, self._actions], dim=-1)

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [P]; mean near 0 (last gain 0.01), log deviations `log_std_init`."""
        weights = self.net.init(generator, last_gain=0.01)
        return torch.cat([weights, torch.full((self._actions,), self._log_std_init)])

    def draw(self, generator: torch.Generator | UserCounters, *shape: int) -> Tensor:
        """Draw standard normals [*shape, A]."""
        if isinstance(generator, UserCounters):
            return generator.gaussian(*shape, self._actions)
        return torch.randn(*shape, self._actions, generator=generator)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        weights, log_std = self._split(params)
        outputs, std = self.net.by_rows(weights), log_std.exp().unsqueeze(1)
        return lambda obs, noise: torch.addcmul(outputs(obs), noise, std)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the means [N, B, A]."""
        return self.net.forward(self._split(params)[0], obs)

    def log_prob(self, params: Tensor, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `NetPolicy.log_prob`; actions [N, B, A] before clipping."""
        weights, log_std = self._split(params)
        mean = self.net.forward(weights, obs)
        spread = log_std.unsqueeze(1)
        scaled = (actions - mean) * (-spread).exp()
        log_probs = -0.5 * (scaled * scaled).sum(-1) - (spread + 0.5 * _LOG_2PI).sum(-1)
        entropy = (spread + 0.5 + 0.5 * _LOG_2PI).sum(-1)
        return log_probs, entropy.expand_as(log_probs)

    def score_roots(self, params: Tensor, outputs: Tensor) -> Tensor:
        """See `NetPolicy.score_roots`: the inverse standard deviations, as a diagonal matrix."""
        inverse = (-params[self.net.size :]).exp()
        return torch.diag(inverse).expand(len(outputs), -1, -1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Clip to [-1, 1] and map to the environment's box."""
        return self.bounds().apply(actions)

    def bounds(self) -> Bounds:
        """See `Policy.bounds`."""
        return Bounds(self._least, self._most, self._centre, self._half)


class MultiCategoricalPolicy(SoftmaxPolicy):
    """Independent softmax policies over the coordinates of a MultiDiscrete action.

    The network has one logit for every choice of every coordinate. Actions are numbers [..., A] from 0 on.
    """

    kernel_head: ClassVar[int | None] = None

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], network: str = "mlp"):
        assert spec.choices is not None
        self._counts = list(spec.choices)
        starts = torch.tensor([0, *self._counts]).cumsum(0)
        self._starts = starts[:-1]
        super().__init__(spec, hidden, network, int(starts[-1]))

    def _sizes(self) -> list[int]:
        return self._counts

    def _best(self, logits: Tensor) -> Tensor:
        best = [x.argmax(-1) for x in logits.split(self._counts, dim=-1)]
        return torch.stack(best, dim=-1).to(logits.dtype)

    def _log_probs(self, logits: Tensor) -> Tensor:
        parts = logits.split(self._counts, dim=-1)
        return torch.cat([torch.log_softmax(x, dim=-1) for x in parts], dim=-1)

    def _chosen(self, actions: Tensor) -> Tensor:
        return actions.long() + self._starts.to(actions.device)


def make_policy(
    spec: EnvSpec, hidden: list[int], network: str = "mlp", log_std_init: float = 0.0
) -> NetPolicy:
    """Return the policy for the action space of `spec`.

    Args:
        spec: of the environment.
        hidden: widths of the tanh layers.
        network: `algo.network`, mlp or cnn.
        log_std_init: initial log standard deviation of continuous actions.

    Raises:
        ConfigError: `cnn` without images; `log_std_init` with discrete actions.
    """
    if not spec.discrete and spec.choices is None:
        return GaussianPolicy(spec, tuple(hidden), network, log_std_init)
    if log_std_init:
        what = f"must be 0: the actions of {spec.name} are discrete"
        raise ConfigError("algo.log_std_init", what)
    if spec.choices is not None:
        return MultiCategoricalPolicy(spec, tuple(hidden), network)
    return CategoricalPolicy(spec, tuple(hidden), network)
