"""The Fisher metric of a policy at public states: the coordinates in which rows are clipped and noise is drawn.

    F = mean over public states s of E_a[grad log pi(a | s) grad log pi(a | s)'],   B = (F + damping I)^-1/2

A step d changes the policy by a KL divergence of d' F d / 2, to second order. A user sends B g scaled to the
clip, and the server steps along B (mean + noise): a natural gradient, whose noise is as large in every
direction of the policy.

The states are fixed draws from N(0, I), in units of the scaled observations; no user's data enter. So B is a
function of released parameters: given all earlier releases it is a constant, rows are clipped in the
coordinates in which noise is drawn, and the guarantee is that of rows without a metric, for correlated noise
too (Denisov et al. 2022, "Improved differential privacy for SGD via optimal private linear operators on
adaptive streams", theorem 2.1). What the server does with B is post-processing.

F is taken layer by layer, each as the Kronecker product of the second moments of the layer's inputs and of the
gradients at its outputs (Martens and Grosse 2015, "Optimizing neural networks with Kronecker-factored
approximate curvature"), with the expectation over actions exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.errors import ConfigError
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.policy import NetPolicy

METRIC = "metric"  # state tensor [R, M]: eigenvectors and eigenvalues of F's factors
VELOCITY = "velocity"  # state tensor [R, P]: average of releases
_STATES = 300
_SEED = 20_150_206


class FisherMetric:
    """B of a policy with a dense network; see the module.

    Args:
        policy: the policy.
        damping: added to every eigenvalue of F.

    Raises:
        ConfigError: on `algo.metric`: the network has convolutions.
    """

    def __init__(self, policy: NetPolicy, damping: float):
        if not isinstance(policy.net, Mlp):
            raise ConfigError(
                "algo.metric", "fisher needs algo.network=mlp; otherwise use euclidean"
            )
        self._policy, self._net, self._damping = policy, policy.net, damping
        self._states = torch.from_numpy(_normals(_STATES, self._net.inputs)).float()
        sides = [n for fan_in, fan_out in self._net.shapes for n in (fan_in + 1, fan_out)]
        self._pieces = [size for n in sides for size in (n * n, n)]

    def of(self, actors: Tensor) -> Tensor:
        """Eigenvectors and eigenvalues of the factors of F, [R, size], for policies [R, P]."""
        return torch.stack([torch.cat([x.flatten() for x in self._factors(a)]) for a in actors])

    @torch.no_grad()
    def _factors(self, actor: Tensor) -> list[Tensor]:
        """Eigenvectors and eigenvalues of both factors of each layer."""
        net, x = self._net, self._states.to(actor)
        layers = [(w[0], b[0, 0]) for w, b in net.unpack(actor[None, : net.size])]
        inputs = []
        for k, (weight, bias) in enumerate(layers):
            inputs.append(x)
            x = x @ weight + bias
            x = torch.tanh(x) if k < len(layers) - 1 else x
        # [B, K, outputs]: the sum over K of their outer products is E[grad_x log pi grad_x log pi'].
        gradients = [self._policy.score_roots(actor, x)]
        for (weight, _), after in zip(layers[:0:-1], inputs[:0:-1], strict=True):
            bend = 1.0 - after.square()  # of tanh
            gradients.insert(0, (gradients[0] @ weight.T) * bend[:, None])
        found = []
        for before, gradient in zip(inputs, gradients, strict=True):
            a = torch.cat([before, before.new_ones(len(before), 1)], dim=1)
            for side in (a, gradient.flatten(0, 1)):
                side = side.double()
                values, vectors = torch.linalg.eigh(side.T @ side / len(x))
                found += [vectors.to(actor), values.clamp_min(0.0).to(actor)]
        return found

    def whiten(self, metric: Tensor, rows: Tensor) -> Tensor:
        """B times rows [R, U, P], with `metric` from `of`."""
        return torch.stack([self._whiten(m, r) for m, r in zip(metric, rows, strict=True)])

    def _whiten(self, metric: Tensor, rows: Tensor) -> Tensor:
        pieces = iter(metric.split(self._pieces))
        parts = iter(rows[:, : self._net.size].split(self._net.splits, dim=1))
        found = []
        for fan_in, fan_out in self._net.shapes:
            both = [(next(pieces).view(n, n), next(pieces)) for n in (fan_in + 1, fan_out)]
            (left, a), (right, g) = both
            weight = next(parts).view(-1, fan_in, fan_out)
            layer = torch.cat([weight, next(parts).view(-1, 1, fan_out)], dim=1)
            scale = (torch.outer(a, g) + self._damping).rsqrt()
            layer = left @ (left.T @ layer @ right * scale) @ right.T
            found += [layer[:, :fan_in].flatten(1), layer[:, fan_in]]
        rest = rows[:, self._net.size :] * (self._policy.rest_fisher + self._damping) ** -0.5
        return torch.cat([*found, rest], dim=1)

    def divergences(self, actors: Tensor, steps: Tensor) -> Tensor:
        """KL divergences of steps [R, P] from policies [R, P] to second order, [R], the mean over states."""
        return torch.stack([self._divergence(a, d) for a, d in zip(actors, steps, strict=True)])

    def _divergence(self, actor: Tensor, step: Tensor) -> Tensor:
        net, states = self._net, self._states.to(actor)

        def outputs(params: Tensor) -> Tensor:
            return net.forward(params[None], states[None])[0]

        found = torch.func.jvp(outputs, (actor[: net.size],), (step[: net.size],))
        out, change = found[0], found[1]
        moved = (
            (self._policy.score_roots(actor, out) @ change[..., None]).square().sum((1, 2)).mean()
        )
        return 0.5 * (moved + self._policy.rest_fisher * step[net.size :].square().sum())


def _normals(count: int, dim: int) -> np.ndarray:
    """Constants [count, dim] from N(0, 1): NumPy guarantees the raw numbers of PCG64 across versions."""
    raw = np.random.PCG64(_SEED).random_raw(count * dim).reshape(count, dim)
    return np.asarray(ndtri(((raw >> np.uint64(11)) + 0.5) * 2.0**-53))


class Euclidean:
    """What the length of a row and of a server's step is measured in: here the norm of the parameters."""

    def __init__(self, policy: NetPolicy, config: DppgConfig):
        pass

    def init(self, actors: Tensor) -> dict[str, Tensor]:
        """State tensors for the first round."""
        return {}

    def rows(self, tensors: Mapping[str, Tensor], gradients: Tensor) -> Tensor:
        """The coordinates of gradients [R, U, P] in which they are clipped."""
        return gradients

    def server(
        self, tensors: Mapping[str, Tensor], released: Tensor, share: float
    ) -> dict[str, Tensor]:
        """The state tensors after a release [R, P], `actor` among them; `share` of the first step's length."""
        return {"actor": tensors["actor"] + share * released}


class Fisher(Euclidean):
    """The Fisher metric: a step has a fixed divergence, along B times an average of the releases.

    Raises:
        ConfigError: on `algo.metric`: rows are not gradients, or the network has convolutions.
    """

    def __init__(self, policy: NetPolicy, config: DppgConfig):
        if config.user_update != "gradient":
            what = "fisher needs algo.user_update=gradient; otherwise use euclidean"
            raise ConfigError("algo.metric", what)
        self._metric = FisherMetric(policy, config.damping)
        self._divergence, self._momentum = config.step_kl, config.momentum

    def init(self, actors: Tensor) -> dict[str, Tensor]:
        """See `Euclidean`."""
        return {METRIC: self._metric.of(actors), VELOCITY: torch.zeros_like(actors)}

    def rows(self, tensors: Mapping[str, Tensor], gradients: Tensor) -> Tensor:
        """See `Euclidean`: B times gradients."""
        return self._metric.whiten(tensors[METRIC], gradients)

    def server(
        self, tensors: Mapping[str, Tensor], released: Tensor, share: float
    ) -> dict[str, Tensor]:
        """See `Euclidean`. The length of the released mean has no effect, only its direction."""
        velocity = self._momentum * tensors[VELOCITY] + (1.0 - self._momentum) * released
        step = self._metric.whiten(tensors[METRIC], velocity[:, None])[:, 0]
        size = self._metric.divergences(tensors["actor"], step).clamp_min(1e-30)
        actors = tensors["actor"] + share * (self._divergence / size).sqrt()[:, None] * step
        return {"actor": actors, METRIC: self._metric.of(actors), VELOCITY: velocity}


# `algo.metric` -> the geometry of a policy's rows and steps
METRICS: dict[str, type[Euclidean]] = {"euclidean": Euclidean, "fisher": Fisher}
